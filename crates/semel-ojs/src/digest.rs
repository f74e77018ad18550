//! Digest of a request under the caller's own id: tells a repetition from a different request (SEMANTICS 4).

use semel_core::canon::{Json, digest};
use semel_core::error::Invalid;
use semel_core::tenant::take_own;
use semel_core::unique::TRACE_NAMES;
use sha2::{Digest, Sha256};

use crate::enqueue::is_system;
use crate::members::Members;
use crate::unique::DUPLICATES;

/// SHA-256 over the members of the request as they were sent, regardless of order and spacing: relative times
/// are not resolved, integers count by their digits. Excluded are null members, members that only servers set
/// (also in the meta of a tenant's jobs), and trace context.
pub(crate) fn request(members: &Members<'_>, tenant: &str) -> Result<[u8; 32], Invalid> {
    let mut parts = Vec::new();
    for (name, value) in members.iter("") {
        if value.is_null() || is_system(name) {
            continue;
        }
        if name == "options" && value.is_object() {
            for (name, value) in value.members()?.iter("/options") {
                if value.is_null() {
                    continue;
                }
                let mut tree = asked(name, value.tree()?);
                if name == "metadata" && is_servers(&mut tree, tenant) {
                    continue;
                }
                parts.push((format!("options/{name}"), digest(&tree)));
            }
            continue;
        }
        let mut tree = asked(name, value.tree()?);
        if name == "meta"
            && let Json::Object(members) = &mut tree
        {
            members.retain(|(name, _)| !TRACE_NAMES.contains(&name.as_ref()));
            if is_servers(&mut tree, tenant) {
                continue;
            }
        }
        parts.push((own_name(name), digest(&tree)));
    }
    parts.sort_unstable();
    let mut hasher = Sha256::new();
    for (name, digest) in parts {
        // The length separates each name from what follows it.
        hasher.update((name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update(digest);
    }
    Ok(hasher.finalize().into())
}

/// The name under which a member beside `options` is hashed. A name spelt like the path of a member of `options`
/// is escaped, so that the two cannot collide; all others stay unchanged, because their digests are stored.
fn own_name(name: &str) -> String {
    match name.strip_prefix("options") {
        Some(rest) if rest.trim_start_matches('~').starts_with('/') => format!("options~{rest}"),
        _ => name.to_owned(),
    }
}

/// Removes the server's own members from meta. Returns whether nothing else was there: the answered request then had no meta.
fn is_servers(meta: &mut Json<'_>, tenant: &str) -> bool {
    take_own(meta, tenant) && matches!(meta, Json::Object(members) if members.is_empty())
}

/// The value without the members inside it that only a server sets.
fn asked<'a>(name: &str, mut tree: Json<'a>) -> Json<'a> {
    if name == "unique"
        && let Json::Object(members) = &mut tree
    {
        members.retain(|(name, _)| name != DUPLICATES);
    }
    tree
}
