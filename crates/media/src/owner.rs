//! The owner of a pool. A user who can write a pool's files can run code as the process that opens it (SECURITY.md). So a process opens
//! pools of its own user, of root, and of the users that it was told to trust.
//!
//! What must always hold: reading needs no trust; a refusal writes nothing. The environment names the trusted users, except in a program
//! that has more rights than the user who started it (set-user-id).

use crate::{Error, Result};

/// Numbers of users whose pools are opened as if they were this user's own, with commas between them.
const TRUSTED: &str = "TOWA_TRUST_OWNER";

/// What user `owner` has, the directory or a file of the pool at `location`, may be opened to be written.
///
/// # Errors
/// [`Error::Unsupported`]: it belongs to another user than this one and root.
pub(crate) fn check(location: impl FnOnce() -> String, owner: u32) -> Result<()> {
    // SAFETY: asks, and changes nothing.
    let (me, is_secure) = unsafe { (libc::geteuid(), libc::getauxval(libc::AT_SECURE) != 0) };
    let told = if is_secure { None } else { std::env::var(TRUSTED).ok() };
    if [0, me].contains(&owner) || trusts(told.as_deref(), owner) {
        return Ok(());
    }
    let what = format!(
        "belongs to user {owner}, and not to user {me}, who opens it, or root; whoever wrote a pool can run code as its opener. Open it as user \
         {owner} (root may: setpriv --reuid {owner} --clear-groups COMMAND), give it to user {me} (chown -R), or set {TRUSTED}={owner} if that \
         user is trusted"
    );
    Err(Error::Unsupported { location: location(), what })
}

fn trusts(told: Option<&str>, owner: u32) -> bool {
    told.is_some_and(|told| told.split(',').any(|user| user.trim().parse() == Ok(owner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_this_user_and_root_and_of_those_that_are_named_are_opened() {
        // SAFETY: asks, and changes nothing.
        let me = unsafe { libc::geteuid() };
        for owner in [0, me] {
            check(|| "pool".into(), owner).unwrap();
        }
        let refused = check(|| "pool".into(), me + 4711).unwrap_err().to_string();
        assert!(refused.starts_with("pool: belongs to user") && refused.contains(TRUSTED), "{refused}");
        assert!(trusts(Some("7, 4711"), 4711) && !trusts(Some("47110,"), 4711) && !trusts(Some(""), 0) && !trusts(None, 4711));
    }
}
