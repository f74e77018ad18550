//! The token file that `semel token` writes and `semel serve` reads: digests and rights, but no token's text.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use semel_core::hex;
use semel_core::ident::QueueName;
use semel_core::time::Timestamp;
use semel_server::auth::{self, Queues, Role, Token};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Exit, Failure};

/// The prefix of every token, so that a leaked one is recognized.
const PREFIX: &str = "semel_";
/// Random bytes of a token: 256 bits.
const RANDOM_BYTES: usize = 32;
/// Random bytes of a token's id.
const ID_BYTES: usize = 5;

/// The contents of the file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFile {
    /// Its tokens, oldest first.
    #[serde(default, rename = "token")]
    pub tokens: Vec<Entry>,
}

/// One token.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Identifies the token in lists and logs.
    pub id: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// SHA-256 of its text, in hexadecimal digits.
    pub sha256: String,
    /// The roles: `producer`, `worker`, `admin`, `metrics`.
    pub roles: Vec<String>,
    /// Names of queues, or prefixes followed by `*`; empty means all queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// The tenant it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether answers may tell of jobs that others enqueued. If absent: yes, unless bound to a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspect: Option<bool>,
    /// When it was created.
    pub created_at: String,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The id of the token that replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
}

impl Entry {
    /// Whether it may read args, meta and results; a tenant's token only if its entry says so.
    pub fn may_inspect(&self) -> bool {
        self.inspect.unwrap_or(self.tenant.is_none())
    }

    /// Creates a token of 256 random bits. Also returns its text, which is stored nowhere.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn make(roles: Vec<String>, now: Timestamp) -> Result<(Self, String), Failure> {
        let text = format!("{PREFIX}{}", random_hex::<RANDOM_BYTES>()?);
        let entry = Self {
            id: format!("tok_{}", random_hex::<ID_BYTES>()?),
            name: String::new(),
            sha256: hex::text(&auth::digest(&text)),
            roles,
            queues: Vec::new(),
            tenant: None,
            inspect: None,
            created_at: now.to_string(),
            expires_at: None,
            replaced_by: None,
        };
        Ok((entry, text))
    }

    /// The digest of its text. Upper-case digits are accepted, as some tools write them.
    fn digest(&self) -> Option<[u8; 32]> {
        hex::parse(&self.sha256.to_ascii_lowercase())
    }

    /// Converts the entry to the server's type.
    fn token(&self) -> Result<Token, String> {
        let refuse = |what: &str| format!("the token {} {what}", self.id);
        let digest = self.digest().ok_or_else(|| refuse("has a sha256 that is not 64 hexadecimal digits"))?;
        if self.roles.is_empty() {
            return Err(refuse("has no role"));
        }
        let role = |name: &String| {
            Role::from_name(name).ok_or_else(|| refuse(&format!("has the unknown role {name:?}")))
        };
        let roles = self.roles.iter().map(role).collect::<Result<_, _>>()?;
        for queue in &self.queues {
            check_queue(queue).map_err(|what| refuse(&what))?;
        }
        if let Some(tenant) = &self.tenant {
            semel_core::tenant::Tenant::parse(tenant, "")
                .map_err(|_| refuse("is bound to a tenant whose name is not valid"))?;
        }
        let expires_at = self.expires_at.as_deref().map(|text| Timestamp::parse(text, "/expires_at"));
        let expires_at =
            expires_at.transpose().map_err(|_| refuse("has an expires_at that is not a time"))?;
        Ok(Token {
            queues: if self.queues.is_empty() {
                Queues::All
            } else {
                Queues::Only(self.queues.as_slice().into())
            },
            tenant: self.tenant.clone(),
            inspect: self.may_inspect(),
            expires_at,
            ..Token::new(self.id.clone(), digest, roles)
        })
    }
}

/// Checks that this is the name of a queue, or a prefix of such names followed by `*`.
///
/// # Errors
/// What is wrong with it.
pub fn check_queue(pattern: &str) -> Result<(), String> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if pattern == "*" || QueueName::parse(name.trim_end_matches('.'), "").is_ok() {
        return Ok(());
    }
    Err(format!("names {pattern:?}, which is not a queue; write a name, or a prefix such as mail.*"))
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// When it is missing or does not parse; the error repeats no line of it.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        match fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                Failure::usage(format!("{shown} is not a file of token digests: {}", error.message()))
            }),
            Err(error) => {
                let failure = Failure::usage(format!("cannot read the tokens in {shown}: {error}"));
                Err(failure.next("create the first one: semel token create --tokens FILE --role admin"))
            }
        }
    }

    /// Converts the tokens to the server's type.
    ///
    /// # Errors
    /// When one of them is invalid: then none is used.
    pub fn tokens(&self) -> Result<Vec<Token>, Failure> {
        self.tokens.iter().map(|entry| entry.token().map_err(Failure::usage)).collect()
    }

    /// The entry of the token with this text.
    pub fn find(&self, text: &str) -> Option<&Entry> {
        let digest = auth::digest(text);
        self.tokens.iter().find(|entry| entry.digest() == Some(digest))
    }

    /// Changes the file under a lock, or creates it, readable by its owner alone. Readers see the old or the
    /// new file: the new one is renamed over the old one, with its owner and mode. A symbolic link stays: its
    /// target is changed, for that is what others read.
    ///
    /// # Errors
    /// Those of `change`, and when the file cannot be written.
    pub fn change<T>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let what = format!("cannot write the tokens in {}", path.display());
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
            && !folder.is_dir()
        {
            let folder = folder.display();
            return Err(Failure::failed(format!("{what}: there is no directory {folder}")).next(format!(
                "create it: mkdir -p {folder} (as root, if it is a system directory); or name another file"
            )));
        }
        let path = real(path).context(&what)?;
        let path = path.as_path();
        let lock = private().create(true).truncate(false).open(beside(path, "lock")).context(&what)?;
        // The lock is held until the end of this function.
        lock.lock().context(&what)?;
        let mut file = match Self::read(path) {
            Err(_) if matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound) => {
                Self::default()
            }
            read => read?,
        };
        let changed = change(&mut file)?;
        file.tokens()?;
        let text = toml::to_string(&file).context(&what)?;
        let new = beside(path, "new");
        // A file left by a crash may be readable to others.
        drop(fs::remove_file(&new));
        let mut written = private().create_new(true).open(&new).context(&what)?;
        if let Ok(before) = fs::metadata(path) {
            as_before(&written, &before).map_err(|error| {
                drop(fs::remove_file(&new));
                Failure::new(Exit::Failed, format!("{what}: its owner and mode cannot be kept: {error}"))
                    .next(
                        "nothing was changed; run it as root, or as the file's owner if that account is also in the file's group",
                    )
            })?;
        }
        written.write_all(text.as_bytes()).context(&what)?;
        written.sync_all().context(&what)?;
        fs::rename(&new, path).context(&what)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).context(&what)?;
        Ok(changed)
    }
}

/// The file that this name leads to; if there is none yet, the name itself. A dangling link is refused: a
/// file in its place would not be found under the target's name.
fn real(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(path) {
            Ok(_) => Err(io::Error::new(error.kind(), "it is a link to a file that does not exist")),
            Err(_) => Ok(path.to_owned()),
        },
        found => found,
    }
}

/// The file's name with a suffix.
fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(more);
    name.into()
}

/// Options to open a file that only its owner may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Keeps the old file's owner and mode, so that whoever could read the file still can: a server that runs as
/// another user would otherwise keep its old tokens.
fn as_before(written: &File, before: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt as _, fchown};
        let now = written.metadata()?;
        let other = |own: u32, wanted: u32| (own != wanted).then_some(wanted);
        let (owner, group) = (other(now.uid(), before.uid()), other(now.gid(), before.gid()));
        if owner.is_some() || group.is_some() {
            fchown(written, owner, group)?;
        }
    }
    // Last: changing the owner may clear bits of the mode.
    written.set_permissions(before.permissions())
}

fn random_hex<const N: usize>() -> Result<String, Failure> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).context("cannot get random numbers from the system")?;
    Ok(hex::text(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry::make(vec!["producer".to_owned()], Timestamp::EPOCH).unwrap().0
    }

    #[test]
    fn a_token_is_256_bits_and_its_text_is_not_kept() {
        let (entry, text) = Entry::make(vec!["producer".to_owned()], Timestamp::EPOCH).unwrap();
        assert_eq!(text.len(), PREFIX.len() + 64);
        let kept = toml::to_string(&TokenFile { tokens: vec![entry.clone()] }).unwrap();
        assert!(!kept.contains(&text[PREFIX.len()..]), "{kept}");
        assert_eq!(entry.token().unwrap().digest, auth::digest(&text));
    }

    #[test]
    fn a_digest_in_capitals_is_the_same() {
        let (entry, text) = Entry::make(vec!["producer".to_owned()], Timestamp::EPOCH).unwrap();
        let entry = Entry { sha256: entry.sha256.to_ascii_uppercase(), ..entry };
        assert_eq!(entry.token().unwrap().digest, auth::digest(&text));
        assert!(TokenFile { tokens: vec![entry] }.find(&text).is_some());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(entry().token().is_ok());
        let wrong = [
            Entry { roles: vec!["root".to_owned()], ..entry() },
            Entry { roles: Vec::new(), ..entry() },
            Entry { sha256: "ab".to_owned(), ..entry() },
            Entry { queues: vec!["no queue".to_owned()], ..entry() },
            Entry { tenant: Some("a b".to_owned()), ..entry() },
            Entry { expires_at: Some("tomorrow".to_owned()), ..entry() },
        ];
        for entry in wrong {
            assert!(entry.token().is_err(), "{entry:?}");
        }
    }

    #[test]
    fn a_token_of_a_tenant_does_not_inspect_unless_it_says_so() {
        let of = |inspect| Entry { tenant: Some("acme".to_owned()), inspect, ..entry() };
        assert!(!of(None).token().unwrap().inspect && of(Some(true)).token().unwrap().inspect);
    }
}
