//! Runs tests that share a host cluster. The cluster outlives each of them, see [`crate::keeper`]: with one process for each
//! test, as `make test` runs them, and with one process for a suite, as `cargo test` does.

use crate::{
    keeper::{self, Lease, Turn},
    test_cluster::TestCluster,
};
use berth_runtime::locks::lock;
use futures::{FutureExt, future::LocalBoxFuture};
use libtest_mimic::{Arguments, Trial};
use std::{
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::spawn_blocking;

/// A test: its name and what it does.
pub type Test = (&'static str, fn(Arc<TestCluster>) -> LocalBoxFuture<'static, ()>);

/// Time for a test from the moment at which it has its cluster. The runner's limit is longer, since tests wait for their turn:
/// see `.config/nextest.toml`.
const LIMIT: Duration = Duration::from_mins(15);

/// [`LIMIT`], or as many minutes as the variable `BERTH_TEST_MINUTES` says: for random tests with many rounds.
fn limit() -> Duration {
    let minutes = std::env::var("BERTH_TEST_MINUTES").ok();
    let minutes = minutes.and_then(|text| text.parse().ok());
    minutes.map_or(LIMIT, Duration::from_mins)
}

/// Whether this machine cannot have real nodes, so that a test of them is left out. Prints why. Panics where `CI` is set: no test may be left out there.
pub fn lacks_real_nodes() -> bool {
    let obstacle = berth_local::obstacle_to_real_nodes();
    if let Some(why) = &obstacle {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("not run: {why}");
    }
    obstacle.is_some()
}

/// Names an async function `fn(Arc<TestCluster>)` as a [`Test`].
#[macro_export]
macro_rules! tests {
    ($($path:path),+ $(,)?) => {
        vec![$((stringify!($path), |host| Box::pin($path(host)))),+]
    };
}

/// Tests that do not run at the same time as those of other groups.
pub struct Group {
    /// How many run at the same time in one process (`cargo test`); `.config/nextest.toml` has this for a process per test.
    threads: Option<usize>,
    /// Whether a failed test may leave a cluster in which others would fail.
    can_break: bool,
    tests: Vec<Test>,
}

impl Group {
    /// Tests that do not disturb each other: they run at the same time, at most `threads` of them.
    pub fn together(threads: usize, tests: Vec<Test>) -> Self {
        Self {
            threads: Some(threads),
            can_break: false,
            tests,
        }
    }

    /// Tests that do not disturb each other: as many at the same time as there are processors.
    pub fn at_once(tests: Vec<Test>) -> Self {
        Self {
            threads: None,
            can_break: false,
            tests,
        }
    }

    /// Tests that each need the cluster for themselves.
    pub fn alone(tests: Vec<Test>) -> Self {
        Self::together(1, tests).that_can_break_it()
    }

    /// Tests that break a part of the cluster and repair it at their end: after a failure the next test gets another cluster.
    #[must_use]
    pub fn that_can_break_it(mut self) -> Self {
        self.can_break = true;
        self
    }

    fn is_alone(&self) -> bool {
        self.threads == Some(1)
    }
}

/// Tests of one host cluster.
pub struct Suite {
    nodes: &'static str,
    start: fn(&'static str) -> LocalBoxFuture<'static, TestCluster>,
    prepare: fn(&TestCluster),
    needs_real_nodes: bool,
    groups: Vec<Group>,
}

/// Runs tests on a cluster with these simulated nodes.
pub fn run(nodes: &'static str, groups: Vec<Group>) -> ExitCode {
    Suite::new(nodes, |nodes| TestCluster::start(nodes).boxed_local(), groups).run()
}

/// Runs tests on one cluster of real nodes with Berth installed by its chart. Needs root; without it nothing is run, which is
/// a failure where the variable `CI` is set.
pub fn run_on_real_nodes(nodes: &'static str, groups: Vec<Group>) -> ExitCode {
    let mut suite = Suite::new(nodes, |nodes| TestCluster::on_real_nodes(nodes).boxed_local(), groups);
    suite.needs_real_nodes = true;
    suite.run()
}

impl Suite {
    /// Tests on a cluster with these nodes that `start` starts.
    pub fn new(
        nodes: &'static str,
        start: fn(&'static str) -> LocalBoxFuture<'static, TestCluster>,
        groups: Vec<Group>,
    ) -> Self {
        Self {
            nodes,
            start,
            prepare: |_| {},
            needs_real_nodes: false,
            groups,
        }
    }

    /// Calls `prepare` in the process of a test before it begins. It may be called several times in one process.
    #[must_use]
    pub fn before_each(mut self, prepare: fn(&TestCluster)) -> Self {
        self.prepare = prepare;
        self
    }

    /// Runs the tests that the command line asks for, or keeps their cluster.
    pub fn run(self) -> ExitCode {
        berth_runtime::install_crypto();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        if let Some(folder) = keeper::folder_to_keep() {
            return runtime.block_on(keeper::keep(&folder, self.nodes, (self.start)(self.nodes)));
        }
        let arguments = Arguments::from_args();
        let is_wanted =
            |(name, _): &Test| !arguments.skip.iter().any(|skip| name.contains(skip)) && selected(&arguments, name);
        let place = Arc::new(Place {
            folder: keeper::folder(),
            groups: self.groups.len(),
            prepare: self.prepare,
            needs_real_nodes: self.needs_real_nodes,
            panics: record_panics(),
        });
        let mut failed = false;
        for (index, group) in self.groups.into_iter().enumerate() {
            if !arguments.list && !group.tests.iter().any(is_wanted) {
                continue;
            }
            let mut arguments = arguments.clone();
            arguments.test_threads = group.threads.or(arguments.test_threads);
            let (is_alone, can_break) = (group.is_alone(), group.can_break);
            let trials = group
                .tests
                .into_iter()
                .map(|(name, test)| {
                    let (place, handle) = (Arc::clone(&place), runtime.handle().clone());
                    Trial::test(name, move || {
                        handle.block_on(place.run(index, is_alone, can_break, test));
                        Ok(())
                    })
                })
                .collect();
            failed |= libtest_mimic::run(&arguments, trials).has_failed();
        }
        if failed { ExitCode::from(101) } else { ExitCode::SUCCESS }
    }
}

/// Where the tests of a suite run.
struct Place {
    folder: PathBuf,
    groups: usize,
    prepare: fn(&TestCluster),
    needs_real_nodes: bool,
    panics: Arc<Mutex<Vec<String>>>,
}

impl Place {
    async fn run(
        &self,
        group: usize,
        is_alone: bool,
        can_break: bool,
        test: fn(Arc<TestCluster>) -> LocalBoxFuture<'static, ()>,
    ) {
        if self.needs_real_nodes && lacks_real_nodes() {
            return;
        }
        let (lease, _turn) = self.wait_for_turn(group, is_alone).await;
        let host = Arc::new(TestCluster::attach(&lease.access).await);
        (self.prepare)(&host);
        let limit = limit();
        let limited = tokio::time::timeout(limit, test(Arc::clone(&host)));
        let result = AssertUnwindSafe(async { limited.await.unwrap_or_else(|_| panic!("not done within {limit:?}")) })
            .catch_unwind()
            .await;
        if let Err(panic) = result {
            if can_break {
                lease.taint();
            }
            host.print_logs();
            // Once more after the long logs: the end of the output must name the failure.
            for panic in lock(&self.panics).iter() {
                eprintln!("==> {panic}");
            }
            panic::resume_unwind(panic);
        }
    }

    /// Waits until there is a cluster in which no test has failed, and it is this group's turn in it.
    async fn wait_for_turn(&self, group: usize, is_alone: bool) -> (Lease, Turn) {
        loop {
            let (folder, groups): (PathBuf, usize) = (self.folder.clone(), self.groups);
            let take = move || {
                let folder: &Path = &folder;
                (Lease::take(folder), Turn::take(folder, groups, group, is_alone))
            };
            let taken = spawn_blocking(take)
                .await
                .unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => panic::resume_unwind(panic),
                    Err(error) => panic!("{error}"),
                });
            if !taken.0.is_tainted() {
                return taken;
            }
        }
    }
}

/// Keeps the text of every panic from now on, besides printing it.
fn record_panics() -> Arc<Mutex<Vec<String>>> {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let (kept, print) = (Arc::clone(&panics), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        print(panic);
        lock(&kept).push(panic.to_string());
    }));
    panics
}

/// Whether a test matches the filter of the command line.
fn selected(arguments: &Arguments, name: &str) -> bool {
    match &arguments.filter {
        Some(filter) if arguments.exact => name == filter,
        Some(filter) => name.contains(filter),
        None => true,
    }
}
