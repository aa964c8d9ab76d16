//! `berth-scrub STEP [ARGUMENT…]`: runs one step of cleaning or checking this node.

use berth_scrub::{Node, program, run};
use std::process::ExitCode;

#[expect(clippy::print_stdout, reason = "the log of its container says what was done")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let step = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    if step == program::INSIDE {
        let error = program::become_program(&arguments);
        eprintln!("{}: {error}", arguments.join(" "));
        return ExitCode::FAILURE;
    }
    match run(&Node::from_environment(), &step, &arguments) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(unclean) => {
            // The last output of the container is the reason of the quarantine.
            eprintln!("{unclean}");
            ExitCode::FAILURE
        }
    }
}
