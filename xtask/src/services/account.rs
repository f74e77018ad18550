//! Accounts of this machine: services refuse to run as root, so a run by root starts them under another
//! account.

use std::path::Path;
use std::process::Command;

/// The variable that tells tests which account their own services must run as.
pub const VARIABLE: &str = "SEMEL_TEST_ACCOUNT";

/// An account that is not root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    user: u32,
    group: u32,
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    #[cfg(unix)]
    {
        // The owner of a process's files is its user; the standard library offers no other way.
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
    }
    #[cfg(not(unix))]
    {
        false
    }
}

impl Account {
    /// The account that a service must run as: none when this process is not root.
    ///
    /// # Errors
    /// When this process is root and none of `names` is an account.
    pub fn for_service(names: &[&str]) -> Result<Option<Self>, String> {
        if !is_root() {
            return Ok(None);
        }
        let accounts = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
        let found = names.iter().find_map(|name| Self::named(&accounts, name));
        found.map(Some).ok_or_else(|| {
            format!("run as root, this needs one of the accounts {}, and none exists", names.join(", "))
        })
    }

    fn named(accounts: &str, name: &str) -> Option<Self> {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let user = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (user != 0).then_some(Self { user, group })
    }

    /// Makes a command run as this account.
    #[cfg(unix)]
    pub fn runs(self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        command.uid(self.user).gid(self.group).current_dir("/");
    }

    /// Gives a folder to this account.
    ///
    /// # Errors
    /// The system's error.
    #[cfg(unix)]
    pub fn owns(self, path: &Path) -> Result<(), String> {
        std::os::unix::fs::chown(path, Some(self.user), Some(self.group)).map_err(|error| error.to_string())
    }

    /// Only Unix has these accounts.
    #[cfg(not(unix))]
    pub fn runs(self, _command: &mut Command) {}

    /// Only Unix has these accounts.
    #[cfg(not(unix))]
    pub fn owns(self, _path: &Path) -> Result<(), String> {
        Ok(())
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.user, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn an_account_is_found_by_its_whole_name_and_is_not_root() {
        let accounts = "root:x:0:0::/root:/bin/sh\npostgres2:x:7:7::/:\npostgres:x:101:104::/:/bin/sh\n";
        assert_eq!(Account::named(accounts, "postgres"), Some(Account { user: 101, group: 104 }));
        assert_eq!(Account::named(accounts, "postgres").unwrap().to_string(), "101:104");
        assert_eq!(Account::named(accounts, "root"), None);
        assert_eq!(Account::named(accounts, "redis"), None);
    }
}
