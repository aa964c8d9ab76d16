//! Tenants of a Project share their pauses: none reclaims nodes while another one left some unused.

use super::advance;
use super::support::{NOW, describe, read_fleet};
use berth_planner::plan;

const PROJECT: &str = "
    pool h100 gpus=8 grace=300
    quota p nominal=16 shared-pauses
    quota q nominal=0
    tenant p1 quota=p unused=h100:2
    group p1/g h100 0..8
    demand p1/g stuck 2x8 since=60
    tenant p2 quota=p
    group p2/g h100 0..8
    demand p2/g stuck 2x8 since=50
    tenant q quota=q
    group q/g h100 0..8
    node n1..n2 q/g used=8 age=7200
";

#[test]
fn nothing_is_reclaimed_for_another_tenant_of_a_project_during_a_pause() {
    let mut fleet = read_fleet(PROJECT);
    fleet.now += 5;
    let made = advance(&mut fleet);
    assert_eq!(made.actions, [], "{}", describe(&made));
    let message = made.node_groups["p2"]["g"].message();
    assert!(
        message.contains("another tenant of its Project left nodes of pool h100 unused: until 12:10 UTC"),
        "{message}"
    );
    fleet.now = NOW + 600;
    assert_eq!(advance(&mut fleet).actions.len(), 2, "the pause is over");
}

#[test]
fn a_tenant_that_gives_up_its_group_does_not_end_the_pause() {
    let mut fleet = read_fleet(PROJECT);
    fleet.tenants[0].node_groups.clear();
    let made = advance(&mut fleet);
    assert_eq!((made.actions.len(), made.replan_at), (0, Some(NOW + 600)));
}

#[test]
fn a_tenant_that_is_gone_does_not_end_the_pause() {
    let mut fleet = read_fleet(PROJECT);
    fleet.tenants[0].node_groups.clear();
    fleet.tenants[0].terminated = true;
    for now in [NOW, NOW + 599] {
        fleet.now = now;
        let made = advance(&mut fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
        assert!(made.unused_nodes.contains_key("p1"), "the next plan needs it as well");
    }
    fleet.now = NOW + 600;
    assert_eq!(advance(&mut fleet).actions.len(), 2);
}

#[test]
fn tenants_of_a_class_do_not_share_their_pauses() {
    let made = plan(&read_fleet(&PROJECT.replace(" shared-pauses", "")));
    assert_eq!(made.actions.len(), 2, "{}", describe(&made));
}

#[test]
fn free_nodes_go_to_the_other_tenants_of_the_project_all_the_same() {
    let mut fleet = read_fleet(&PROJECT.replace("node n1..n2 q/g used=8 age=7200", "node n1..n2 free"));
    let made = advance(&mut fleet);
    assert_eq!(super::unused::reserved(&made, "p2"), 2, "{}", describe(&made));
}
