//! The shared libraries of a program, as this machine's loader finds them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Paths of the libraries that a program needs, its loader among them; none for one that is linked statically.
pub(super) fn find_libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        // What this process uses (cargo sets it for tests) is not what the program is installed with.
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(|error| format!("cannot run ldd to find the libraries of {}: {error}", program.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        return Err(format!("ldd {}: {}", program.display(), complaint.trim()));
    }
    parse_listing(&String::from_utf8_lossy(&output.stdout)).map_err(|missing| {
        format!(
            "{} needs {missing}, which is not installed on this machine",
            program.display()
        )
    })
}

/// What a listing of ldd names, or the first library that it did not find.
fn parse_listing(listing: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in listing.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if place == "not found" {
            return Err(name.to_owned());
        }
        // Without a path it is the kernel's own (linux-vdso), or a remark about a static program.
        if let Some(path) = place.split(" (").next().filter(|path| path.starts_with('/')) {
            found.push(path.into());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_listed() {
        let listing = "\tlinux-vdso.so.1 (0x00007f7ad51a2000)\n\
                       \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f7ad5171000)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f7ad213e000)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f7ad51a4000)\n";
        let paths = [
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(parse_listing(listing), Ok(paths.map(PathBuf::from).to_vec()));
    }

    #[test]
    fn a_static_program_needs_none() {
        assert_eq!(parse_listing("\tstatically linked\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_library_that_is_not_installed_is_named() {
        let listing = "\tlibseccomp.so.2 => not found\n";
        assert_eq!(parse_listing(listing), Err("libseccomp.so.2".to_owned()));
    }
}
