//! Keys that a tenant left in the kernel. The keyrings of a user (`_uid.1000`, `_uid_ses.1000`) and its persistent one
//! (`_persistent.1000`) outlive the user's processes, and belong to a user ID, not to a container: processes of the next tenant
//! with the same ID could read what is in them.
//!
//! The default seccomp profile of containerd forbids containers the system calls for keys. Others may not, and a class may
//! leave the profile to the kubelet. Keyrings of sessions, processes and user namespaces end with their processes.

use crate::{Unclean, files::text, node::Node};
use linux_keyutils::{Key, KeyError, KeyRing, KeyRingIdentifier, KeySerialId};
use rustix::{process::Uid, thread::set_thread_res_uid};
use std::{fs, thread};

/// Users that have keys: a line for each, which begins with the user's ID.
const KEY_USERS: &str = "/proc/key-users";
/// The keys that a thread may see, a line for each: serial number, flags, uses, expiry, rights, user, group, type and description.
const KEYS: &str = "/proc/keys";

/// Clears the keyrings of every user that has keys.
pub(crate) fn clear(node: &Node) -> Result<String, Unclean> {
    // A kernel without keys has no such file.
    let listed = text(&node.path(KEY_USERS))?.unwrap_or_default();
    let users = users(&listed)?;
    for user in &users {
        as_user(*user, || clear_own(*user)).map_err(|error| {
            Unclean::Left(format!(
                "the keyrings of user {user} cannot be cleared: {error}; reboot the node"
            ))
        })?;
    }
    Ok(format!("the keyrings of {} users are empty", users.len()))
}

fn users(listed: &str) -> Result<Vec<u32>, Unclean> {
    let user = |line: &str| line.split_once(':')?.0.trim().parse::<u32>().ok();
    let unreadable = |line: &str| Unclean::Left(format!("{KEY_USERS} has a line that cannot be read: {line}"));
    listed
        .lines()
        .map(|line| user(line).ok_or_else(|| unreadable(line)))
        .collect()
}

/// Does something as a user: root has no rights on the keys of others. Only the thread becomes that user.
fn as_user<T: Send>(user: u32, action: impl FnOnce() -> Result<T, KeyError> + Send) -> Result<T, String> {
    let work = || {
        let id = Uid::from_raw(user);
        set_thread_res_uid(id, id, id).map_err(|error| error.to_string())?;
        action().map_err(|error| error.to_string())
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err("the thread has panicked".into()))
}

/// Clears the keyrings of the thread's user.
fn clear_own(user_id: u32) -> Result<(), KeyError> {
    // First, because a user at the limit of its keys can have no others made. Only who has the keyring in one of its own may
    // clear it: that of the thread, which ends with the thread.
    match KeyRing::get_persistent(KeyRingIdentifier::Thread) {
        Ok(persistent) => persistent.clear()?,
        // The kernel has no persistent keyrings.
        Err(KeyError::OperationNotSupported) => {}
        Err(error) => return Err(error),
    }
    let user = match KeyRing::from_special_id(KeyRingIdentifier::User, true) {
        // A process of the user took the rights on it away from everybody: nobody finds what is in it, the next tenant neither. Only a
        // reboot would bring the keyring back, which such a process must not be able to force.
        Err(KeyError::KeyDoesNotExist) => return end_visible(user_id),
        user => user?,
    };
    let session = KeyRing::from_special_id(KeyRingIdentifier::UserSession, true)?;
    user.clear()?;
    session.clear()?;
    // As the kernel makes it.
    session.link_keyring(user)
}

/// Ends the keys of the thread's user that it sees. One that cannot be ended must have nothing that can be read. The persistent keyring may be
/// one of them: it is empty by now, and the user's rights on it end with the keyring of the thread.
fn end_visible(user: u32) -> Result<(), KeyError> {
    // Without the list nothing is known to be clean.
    let listed = fs::read_to_string(KEYS).map_err(|_| KeyError::AccessDenied)?;
    for serial in serials(&listed, user) {
        let key = Key::from_id(KeySerialId(serial));
        if let Err(error) = key.invalidate()
            && key.read_to_vec().is_ok_and(|content| !content.is_empty())
        {
            return Err(error);
        }
    }
    Ok(())
}

/// The serial numbers of a user's keys in the kernel's list.
fn serials(listed: &str, user: u32) -> Vec<i32> {
    let serial = |line: &str| {
        let mut fields = line.split_whitespace();
        let serial = i32::from_str_radix(fields.next()?, 16).ok()?;
        // The kernel prints IDs above 2^31 as negative numbers.
        let owner: i64 = fields.nth(4)?.parse().ok()?;
        (owner.rem_euclid(1 << 32) == i64::from(user)).then_some(serial)
    };
    listed.lines().filter_map(serial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_keyutils::{KeyPermissionsBuilder, Permission};

    fn machine(key_users: &str) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("proc")).unwrap();
        fs::write(folder.path().join(KEY_USERS.trim_start_matches('/')), key_users).unwrap();
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    /// The keys that a user may see.
    fn keys_of(user: u32) -> String {
        as_user(user, || Ok(fs::read_to_string("/proc/keys").unwrap())).unwrap()
    }

    #[test]
    fn every_user_with_keys_is_found() {
        let listed = "    0:     9 8/8 3/1000000 40/25000000\n 1000:     3 3/3 3/200 49/20000\n";
        assert_eq!(users(listed).unwrap(), [0, 1000]);
        assert!(users("").unwrap().is_empty());
        assert!(users("somebody: 1\n").is_err() && users("1000\n").is_err());
    }

    #[test]
    fn a_kernel_without_keys_is_clean() {
        let folder = tempfile::tempdir().unwrap();
        assert!(clear(&Node::new(folder.path(), [])).is_ok());
    }

    #[test]
    fn keys_of_one_user_are_listed() {
        let listed = "0be74217 I------     2   3d 1f030000 3000002 65534 keyring   _persistent.3000002: empty\n\
                      0d933d8f I--Q---     2 perm 1f3f0000 -1294959303 65534 keyring   _uid.3000007993: empty\n\
                      broken\n";
        assert_eq!(serials(listed, 3_000_002), [0x0be7_4217]);
        assert_eq!(serials(listed, 3_000_007_993), [0x0d93_3d8f]);
        assert!(serials(listed, 1000).is_empty());
    }

    /// Where the step itself could run, as below.
    #[test]
    fn a_keyring_without_rights_does_not_keep_a_node() {
        let user = 3_100_000_000 + std::process::id();
        let rights = |rights: Permission| KeyPermissionsBuilder::builder().user(rights).build();
        let take_rights = || {
            let ring = KeyRing::from_special_id(KeyRingIdentifier::User, true)?;
            ring.add_key("left", "secret")?;
            let listed = fs::read_to_string(KEYS).unwrap();
            let keyring = format!(" _uid.{user}:");
            let line = listed.lines().find(|line| line.contains(&keyring)).unwrap();
            let serial = KeySerialId(serials(line, user)[0]);
            Key::from_id(serial).set_perms(rights(Permission::SETATTR))?;
            Ok(serial)
        };
        let Ok(serial) = as_user(user, take_rights) else { return };
        let (_folder, node) = machine(&format!("{user}: 5 5/5 5/200 60/20000\n"));
        let cleared = clear(&node);
        let restored = as_user(user, || {
            Key::from_id(serial).set_perms(rights(Permission::ALL))?;
            clear_own(user)
        });
        assert!(cleared.is_ok(), "{cleared:?}");
        restored.unwrap();
    }

    /// Only where the step itself could run: as root, and where the system calls are not forbidden.
    #[test]
    fn keys_that_outlive_their_process_are_cleared() {
        let user = 3_000_000_000 + std::process::id();
        let leave_keys = || {
            KeyRing::get_persistent(KeyRingIdentifier::Thread)?.add_key("left", "secret")?;
            KeyRing::from_special_id(KeyRingIdentifier::User, true)?.add_key("left", "secret")
        };
        if as_user(user, leave_keys).is_err() {
            return;
        }
        let keyrings = ["_uid", "_persistent"].map(|kind| format!("{kind}.{user}"));
        let before = keys_of(user);
        assert!(
            keyrings.iter().all(|name| before.contains(&format!("{name}: 1"))),
            "{before}"
        );
        let (_folder, node) = machine(&format!("{user}: 5 5/5 5/200 60/20000\n"));
        clear(&node).unwrap();
        let after = keys_of(user);
        assert!(
            keyrings.iter().all(|name| after.contains(&format!("{name}: empty"))),
            "{after}"
        );
    }
}
