//! `berth man`: manual pages, from the same definitions as the help texts.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::error::Error;
use crate::output::print_line;

/// Writes `berth.1` and a page for each command into `dir`.
pub(crate) fn run(command: clap::Command, dir: &Path) -> Result<ExitCode, Error> {
    let failed = |action| {
        let path = dir.to_owned();
        move |source| Error::File { action, path, source }
    };
    fs::create_dir_all(dir).map_err(failed("create"))?;
    clap_mangen::generate_to(command, dir).map_err(failed("write manual pages into"))?;
    print_line(format_args!("The manual pages are in {}.", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use clap::CommandFactory as _;

    #[test]
    fn each_command_has_a_page_and_hidden_ones_have_none() {
        let dir = tempfile::tempdir().unwrap();
        run(Arguments::command(), dir.path()).unwrap();
        for page in [
            "berth.1",
            "berth-create.1",
            "berth-dev-up.1",
            "berth-encryption-rotate.1",
        ] {
            assert!(
                fs::read_to_string(dir.path().join(page)).unwrap().contains(".TH"),
                "{page}"
            );
        }
        assert!(!dir.path().join("berth-dev-supervise.1").exists());
    }
}
