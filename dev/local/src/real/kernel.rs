//! Limits of this machine's kernel that are too low for several nodes.

use std::{fs, io, path::Path};

/// Objects through which the programs of one user follow files (`inotify(7)`). A kubelet has six, a control plane of a tenant a dozen, and Linux
/// allows 128 by default: then kubelets end as soon as they start, with "too many open files".
const INSTANCES: (&str, u64) = ("/proc/sys/fs/inotify/max_user_instances", 8192);
/// Files that these follow together. Linux allows some thousands, by the memory of the machine.
const WATCHES: (&str, u64) = ("/proc/sys/fs/inotify/max_user_watches", 524_288);

/// Raises limits that are lower than nodes need. They stay: other programs may rely on them by the time the nodes are removed.
///
/// # Errors
/// The first limit that cannot be raised, in words.
pub(crate) fn raise_limits() -> Result<(), String> {
    for (file, least) in [INSTANCES, WATCHES] {
        raise(Path::new(file), least).map_err(|error| format!("cannot raise {file} to {least}: {error}"))?;
    }
    Ok(())
}

fn raise(file: &Path, least: u64) -> io::Result<()> {
    let now: u64 = fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)?;
    if now < least {
        fs::write(file, least.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_never_lowered() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("limit");
        for (now, then) in [("128\n", "8192"), ("8192\n", "8192\n"), ("65536\n", "65536\n")] {
            fs::write(&file, now).unwrap();
            raise(&file, 8192).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), then);
        }
        assert!(raise(&dir.path().join("none"), 8192).is_err());
    }
}
