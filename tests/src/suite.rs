//! Runs tests that share one world. The world ends after the last of them, which the standard harness cannot promise:
//! it never drops what tests share, and processes would be left behind.

use crate::world::World;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use std::{
    panic,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

/// A test: its name and what it does.
pub type Test = (&'static str, fn(Arc<World>) -> LocalBoxFuture<'static, ()>);

/// Names an async function `fn(Arc<World>)` as a [`Test`].
#[macro_export]
macro_rules! tests {
    ($($path:path),+ $(,)?) => {
        vec![$((stringify!($path), |world| Box::pin($path(world)))),+]
    };
}

/// Tests that run before or after others.
pub struct Group {
    threads: Option<usize>,
    tests: Vec<Test>,
}

impl Group {
    /// Tests that do not mind each other: they run at the same time, at most `threads` of them.
    pub fn together(threads: usize, tests: Vec<Test>) -> Self {
        Self {
            threads: Some(threads),
            tests,
        }
    }

    /// Tests that do not mind each other: as many at the same time as there are processors.
    pub fn at_once(tests: Vec<Test>) -> Self {
        Self { threads: None, tests }
    }

    /// Tests of which each needs the world for itself.
    pub fn alone(tests: Vec<Test>) -> Self {
        Self::together(1, tests)
    }
}

/// Runs groups of tests in a world with these nodes.
pub fn run(nodes: &str, groups: Vec<Group>) -> ExitCode {
    run_groups(World::start(nodes), groups)
}

/// Runs groups of tests on one cluster of real nodes with Berth installed by its chart. Needs root; without it nothing is run,
/// which is a failure where the variable `CI` is set.
pub fn run_on_real_nodes(nodes: &str, groups: Vec<Group>) -> ExitCode {
    // Whoever has no root has no real nodes, which `berth up` says as well.
    if let Some(why) = berth_local::obstacle_to_real_nodes() {
        eprintln!("not run: {why}");
        return match std::env::var_os("CI") {
            Some(_) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        };
    }
    run_groups(World::on_real_nodes(nodes), groups)
}

/// Runs one group after the other in one world, which is started only if there is something to run in it.
pub fn run_groups(start: impl Future<Output = World>, groups: Vec<Group>) -> ExitCode {
    berth_runtime::install_crypto();
    let arguments = Arguments::from_args();
    let wanted =
        |(name, _): &Test| !arguments.skip.iter().any(|skip| name.contains(skip)) && selected(&arguments, name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = if arguments.list || !groups.iter().flat_map(|group| &group.tests).any(wanted) {
        None
    } else {
        Some(Arc::new(runtime.block_on(start)))
    };
    let panics = record_panics();
    let mut failed = false;
    for Group { threads, tests } in groups {
        if world.is_some() && !tests.iter().any(wanted) {
            continue;
        }
        let mut arguments = arguments.clone();
        arguments.test_threads = threads.or(arguments.test_threads);
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
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }
    if failed && let Some(world) = &world {
        world.print_logs();
        // Once more after the long logs: whoever sees only the end of them sees what it was.
        for panic in panics.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            eprintln!("==> {panic}");
        }
    }
    drop(world);
    if failed { ExitCode::from(101) } else { ExitCode::SUCCESS }
}

/// Has the words of every panic from now on kept, beside being printed.
fn record_panics() -> Arc<Mutex<Vec<String>>> {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let (kept, print) = (Arc::clone(&panics), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        print(panic);
        kept.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(panic.to_string());
    }));
    panics
}

/// Whether the filter of the command line lets a test through.
fn selected(arguments: &Arguments, name: &str) -> bool {
    match &arguments.filter {
        Some(filter) if arguments.exact => name == filter,
        Some(filter) => name.contains(filter),
        None => true,
    }
}
