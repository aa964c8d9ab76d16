//! Runs tests that share one world. The world ends after the last of them, which the standard harness cannot promise:
//! it never drops what tests share, and processes would be left behind.

use crate::world::World;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use std::{process::ExitCode, sync::Arc};

/// A test: its name and what it does.
pub type Test = (&'static str, fn(Arc<World>) -> LocalBoxFuture<'static, ()>);

/// Names an async function `fn(Arc<World>)` as a [`Test`].
#[macro_export]
macro_rules! tests {
    ($($path:path),+ $(,)?) => {
        vec![$((stringify!($path), |world| Box::pin($path(world)))),+]
    };
}

/// Runs `tests` in a world with these nodes; one after the other if `one_at_a_time`.
pub fn run(nodes: &str, one_at_a_time: bool, tests: Vec<Test>) -> ExitCode {
    berth_runtime::install_crypto();
    let mut arguments = Arguments::from_args();
    if one_at_a_time {
        arguments.test_threads = Some(1);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = if arguments.list {
        None
    } else {
        Some(Arc::new(runtime.block_on(World::start(nodes))))
    };
    let trials = tests
        .into_iter()
        .map(|(name, test)| {
            let (world, handle) = (world.clone(), runtime.handle().clone());
            Trial::test(name, move || {
                handle.block_on(test(world.ok_or("no world")?));
                Ok(())
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed()
        && let Some(world) = &world
    {
        world.print_logs();
    }
    drop(world);
    conclusion.exit_code()
}
