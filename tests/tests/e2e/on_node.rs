//! Programs that run as on a node, with its directories and its network.

use berth_tests::test_cluster::TestCluster;

/// Runs a program of the node, which must succeed; returns what it printed.
pub(crate) fn run(host: &TestCluster, node: &str, program: &str, arguments: &[&str]) -> String {
    let mut command = host.command_on_node(node, program).unwrap();
    let output = command.args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
