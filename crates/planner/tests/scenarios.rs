//! What is decided in situations that people ask about. Each snapshot shows the fleet and the plan.

mod support;

use berth_planner::plan;
use support::{executor, fleet, told};

/// Plans, sees to it that nothing is left to be done when that was done, and writes it down.
fn story(text: &str) -> String {
    let mut before = fleet(text);
    let first = plan(&before);
    executor::apply(&mut before, &first);
    let second = plan(&before);
    assert!(
        second.actions.is_empty(),
        "the plan\n{}\nis followed by\n{}",
        told(&first),
        told(&second)
    );
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    format!("{}\n=>\n{}", lines.join("\n"), told(&first))
}

macro_rules! scenario {
    ($name:ident, $text:literal) => {
        #[test]
        fn $name() {
            insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
                insta::assert_snapshot!(stringify!($name), story($text));
            });
        }
    };
}

scenario!(
    a_gang_gets_all_its_nodes,
    "
    pool h100 gpus=8
    tenant a
    group a/burst h100 0..8
    want a/burst train-8 8x8 gang since=1
    node n1..n9 free
    "
);

scenario!(
    a_gang_waits_rather_than_hold_seven,
    "
    pool h100 gpus=8
    tenant a
    group a/burst h100 0..8
    want a/burst train-8 8x8 gang since=1
    node n1..n7 free
    node n8 returning
    "
);

scenario!(
    small_demand_passes_a_gang_that_cannot_start,
    "
    pool h100 gpus=8 patience=600
    tenant a
    group a/burst h100 0..8
    want a/burst train-4 4x8 gang since=60
    tenant b
    group b/web h100 0..8
    want b/web chat 1x1 since=5
    node n1..n2 free
    node n3..n4 b/web used=8 age=3600
    "
);

scenario!(
    a_gang_that_waited_too_long_is_no_longer_overtaken,
    "
    pool h100 gpus=8 patience=600
    tenant a
    group a/burst h100 0..8
    want a/burst train-4 4x8 gang since=700
    tenant b
    group b/web h100 0..8
    want b/web chat 1x1 since=5
    node n1..n2 free
    node n3..n4 b/web used=8 age=3600
    "
);

scenario!(
    the_tightest_domain_is_taken_and_whole_ones_stay_whole,
    "
    pool h100 gpus=8 domains
    tenant a
    group a/train h100 0..8
    want a/train job 2x8 gang since=1
    tenant b
    group b/train h100 0..8
    node n1..n4 rack=r1 free
    node n5..n7 rack=r2 free
    node n8 rack=r2 b/train used=8 age=60
    "
);

scenario!(
    a_gang_of_one_domain_waits_though_there_are_enough_nodes,
    "
    pool h100 gpus=8 domains
    tenant a
    group a/train h100 0..8
    want a/train job 4x8 gang one-domain since=1
    tenant b
    group b/train h100 0..8
    node n1..n3 rack=r1 free
    node n4 rack=r1 b/train used=8 age=60
    node n5..n7 rack=r2 free
    node n8 rack=r2 returning
    "
);

scenario!(
    pods_are_placed_on_what_is_there_before_nodes_are_asked_for,
    "
    pool h100 gpus=8
    tenant a
    group a/web h100 0..8
    want a/web chat 5x2 since=1
    node n1 a/web used=4 age=60
    node n2 a/web idle=10 age=60
    node n3..n4 free
    "
);

scenario!(
    what_is_free_is_shared_two_to_one,
    "
    pool h100 gpus=8
    share small weight=1
    share large weight=2
    tenant a share=small
    group a/g h100 0..20
    want a/g job 20x8 since=9
    tenant b share=large
    group b/g h100 0..20
    want b/g job 20x8 since=5
    node n01..n09 free
    "
);

scenario!(
    a_guarantee_takes_borrowed_nodes_back,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=16
    share speech
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 2x8 gang since=5
    tenant s share=speech
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 prio=2
    node n2 s/g used=8 age=3600
    node n3 s/g used=8 age=1800
    node n4 s/g idle=10 age=1800
    "
);

scenario!(
    what_comes_anyway_is_not_taken_from_others,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=24
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 3x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 cordoned=100
    node n2 returning
    node n3..n5 s/g used=8 age=1800
    "
);

scenario!(
    nothing_is_taken_back_for_a_gang_that_would_still_not_fit,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=32
    share speech guaranteed=16
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 4x8 gang since=5
    tenant s share=speech
    group s/g h100 0..8
    node n1..n5 s/g used=8 age=7200
    "
);

scenario!(
    below_its_fair_share_somebody_gets_nodes_back_where_the_pool_says_so,
    "
    pool h100 gpus=8 grace=300 reclaim=fair
    tenant a
    group a/g h100 0..8
    tenant b
    group b/g h100 0..8
    want b/g job 8x8 since=5
    node n1..n6 a/g used=8 age=7200
    "
);

scenario!(
    a_tenure_is_respected_when_nodes_are_taken_back,
    "
    pool h100 gpus=8 grace=300 tenure=3600
    share vision guaranteed=16
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 2x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=1800
    node n2 s/g used=8 age=3400
    "
);

scenario!(
    idle_nodes_go_back_from_broken_domains_first,
    "
    pool h100 gpus=8 domains idle=300 tenure=600
    tenant a
    group a/g h100 2..8
    node n1..n2 rack=r1 a/g idle=400 age=3600
    node n3 rack=r2 a/g idle=400 age=3600
    node n4 rack=r2 free
    node n5 rack=r3 a/g idle=100 age=3600
    node n6 rack=r3 a/g used=1 age=3600
    "
);

scenario!(
    a_cordoned_node_is_kept_when_it_is_needed_again,
    "
    pool h100 gpus=8 idle=300
    tenant a
    group a/g h100 0..8
    want a/g job 1x8 since=1
    node n1 a/g cordoned=0 idle=400 age=3600
    node n2 free
    "
);

scenario!(
    a_reclaim_that_nobody_waits_for_any_more_is_undone,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=16
    tenant v share=vision
    group v/g h100 0..4
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 cordoned=100
    "
);

scenario!(
    what_is_urgent_goes_first_and_takes_back_what_is_not,
    "
    pool h100 gpus=8 grace=300
    tenant a
    group a/g h100 0..8
    want a/g batch 4x8 since=900
    tenant b
    group b/g h100 0..8
    want b/g urgent 2x8 prio=100 since=5
    node n1 free
    node n2 a/g used=8 age=7200 prio=0
    node n3 a/g used=8 age=7200 prio=200
    "
);

scenario!(
    first_come_first_served_where_the_pool_says_so,
    "
    pool h100 gpus=8 order=fifo
    tenant a
    group a/g h100 0..8
    want a/g late 3x8 since=10
    tenant b
    group b/g h100 0..8
    want b/g early 3x8 since=20
    node n1..n4 free
    "
);

scenario!(
    nodes_of_a_tenant_that_is_gone_go_back_at_once,
    "
    pool h100 gpus=8 tenure=3600
    tenant a gone
    group a/g h100 2..2
    tenant b
    group b/g h100 1..1
    node n1 a/g used=8 age=10
    node n2 a/g reserved=2
    node n3 unknown/g used=8 age=10 cordoned=100
    node n4 b/other used=8 age=10
    node n5 b/g used=8 age=10
    "
);

scenario!(
    limits_hold_on_every_level,
    "
    pool h100 gpus=8
    share org limit=24
    share team parent=org
    share rest parent=org
    tenant a share=team
    group a/g h100 0..8
    want a/g job 4x8 since=9
    tenant b share=rest
    group b/g h100 0..1
    want b/g job 4x8 since=9
    node n1..n8 free
    "
);

scenario!(
    what_is_not_lent_stays_free_for_those_it_belongs_to,
    "
    pool h100 gpus=8
    share vision guaranteed=24 lendable=8
    tenant v share=vision
    group v/g h100 0..4
    tenant s
    group s/g h100 0..8
    want s/g job 4x8 since=9
    node n1..n4 free
    "
);

scenario!(
    quarantined_nodes_are_given_to_nobody,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..8
    want a/g job 2x8 gang since=9
    node n1 free
    node n2..n3 unavailable
    "
);

scenario!(
    what_can_never_fit_is_said_and_is_in_nobodys_way,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..2
    want a/g huge 1x16 since=90
    want a/g wide 3x8 gang since=80
    want a/g elsewhere 1x1 zone=b since=70
    want a/g small 1x4 since=9
    node n1..n3 zone=a free
    "
);

scenario!(
    private_nodes_come_first_and_all_at_once,
    "
    pool h100 gpus=8
    tenant old
    group old/private h100 3..3
    tenant young
    group young/private h100 1..1
    tenant busy
    group busy/burst h100 0..4
    want busy/burst job 2x8 since=500
    node n1..n3 free
    node n4 busy/burst used=8 age=60
    "
);

scenario!(
    promises_whose_fellows_vanished_are_completed_or_taken_back,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..8
    want a/g train-3 3x8 gang since=9
    tenant b
    group b/g h100 0..8
    want b/g train-4 4x8 gang since=8
    node n1..n2 a/g reserved=3
    node n3 b/g reserved=4
    node n4 free
    "
);

scenario!(
    a_growing_pool_lacks_what_its_free_nodes_and_those_on_their_way_do_not_hold,
    "
    pool h100 gpus=8 grows
    tenant a
    group a/burst h100 0..16
    want a/burst train-8 8x8 gang since=60
    tenant b
    group b/web h100 0..4
    want b/web chat 3x8 zone=c since=5
    want b/web never 1x8 zone=d since=5
    node n1..n2 zone=c free
    node n3 zone=c b/web used=8 age=60
    node n4 zone=a returning
    node n5 starting
    "
);

scenario!(
    a_pool_without_nodes_grows_from_nothing,
    "
    pool h100 gpus=8 grows
    tenant a
    group a/own h100 2..2
    group a/burst h100 0..8
    want a/burst train 4x8 gang since=60
    want a/burst job 3x1 since=5
    "
);

// As long as nobody knows how large its nodes are, a pod may need one of its own.
scenario!(
    an_empty_pool_is_asked_for_no_more_than_groups_may_have,
    "
    pool h100 gpus=8 grows most=4
    share s limit=16
    tenant a share=s
    group a/g h100 0..1
    want a/g trick 500x1 gang since=90
    tenant b share=s
    group b/g h100 0..8
    want b/g jobs 5x8 since=80
    tenant c
    group c/g h100 0..8
    want c/g by-name 2x8 only-known since=70
    want c/g job 1x8 since=60
    "
);

scenario!(
    a_pool_grows_no_further_than_its_bounds,
    "
    pool h100 gpus=8 most=4 pods=20 size=8
    share s limit=32
    tenant a share=s
    group a/g h100 0..2
    want a/g jobs 30x1 since=90
    tenant b share=s
    group b/g h100 0..8
    want b/g train-3 3x8 gang since=60
    want b/g huge 6x8 gang since=50
    tenant c
    group c/g h100 0..8
    want c/g more 40x1 since=10
    "
);

scenario!(
    a_lowered_limit_takes_nodes_back,
    "
    pool h100 gpus=8 grace=300 reclaim=never
    share speech limit=24
    share vision
    tenant a share=speech
    group a/g h100 1..8
    want a/g more 1x8 since=5
    tenant b share=speech
    group b/g h100 0..8
    tenant c share=vision
    group c/g h100 0..8
    want c/g job 1x8 since=5
    node n1 a/g used=8 age=60
    node n2..n4 b/g used=8 age=60
    node n5 b/g idle=10 age=60
    "
);

scenario!(
    what_a_limit_takes_back_is_not_kept,
    "
    pool h100 gpus=8 grace=300
    share speech limit=8
    tenant a share=speech
    group a/g h100 0..8
    want a/g more 1x8 since=5
    node n1 a/g used=8 age=60
    node n2 a/g used=8 age=60 cordoned=100
    node n3 a/g idle=30 age=60 cordoned=0
    "
);

scenario!(
    a_limit_below_the_floors_is_kept,
    "
    pool h100 gpus=8 grace=300
    share speech limit=8
    tenant a share=speech
    group a/private h100 2..2
    node n1..n2 a/private used=8 age=60
    node n3 free
    "
);

scenario!(
    a_group_that_asks_for_fewer_gives_up_the_least_useful,
    "
    pool h100 gpus=8 domains grace=300
    tenant a
    group a/g h100 0..2
    want a/g job 3x8 since=5
    node n1 rack=r1 a/g used=8 age=60
    node n2 rack=r2 a/g idle=10 age=60
    node n3 rack=r1 a/g used=2 age=60 prio=5
    node n4 rack=r1 a/g used=2 age=60 broken
    node n5 rack=r2 a/g used=8 age=60 cordoned=100
    "
);

scenario!(
    nodes_that_come_are_awaited_and_not_asked_for_twice,
    "
    pool h100 gpus=8 most=4
    tenant a
    group a/g h100 0..8
    want a/g train-4 4x8 gang since=90
    node n1..n2 free
    node n3 starting
    "
);

scenario!(
    a_gang_is_taken_back_whole_and_the_smallest_first,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=24
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 3x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 gang=large
    node n2 s/g used=4 age=7200 gang=large
    node n3 s/g used=4 age=7200 gang=large
    node n4 s/g used=8 age=7200 gang=small
    node n5 s/g used=8 age=7200 gang=small
    node n6 s/g used=8 age=7200
    "
);

// Found by the properties: each of these plans was followed by another one.

scenario!(
    an_idle_node_is_waited_for_rather_than_one_in_use,
    "
    pool h100 gpus=8 grace=300
    share vision guaranteed=8
    tenant v share=vision
    group v/g h100 0..4
    want v/g job 1x8 since=5
    tenant s
    group s/g h100 0..8
    want s/g more 3x8 gang since=5
    node n1 s/g used=8 age=7200 cordoned=100
    node n2 s/g idle=400 age=3600
    node n3 s/g used=8 age=7200
    "
);

scenario!(
    nothing_is_kept_for_a_gang_that_a_floor_leaves_too_few_nodes,
    "
    pool h100 gpus=8 patience=0
    tenant a
    group a/g h100 1..1
    tenant b
    group b/g h100 0..2
    want b/g train 2x8 gang since=60
    want b/g small 1x1 since=5
    node n1..n2 free
    "
);

scenario!(
    what_a_team_is_guaranteed_is_not_for_others_of_its_organization,
    "
    pool h100 gpus=8 grace=300
    share org guaranteed=24
    share team parent=org guaranteed=8
    tenant t share=team
    group t/g h100 0..4
    want t/g job 1x8 since=5
    tenant o share=org
    group o/g h100 0..4
    want o/g urgent 1x8 prio=1 since=5
    node n1 free
    "
);

scenario!(
    whoever_keeps_a_node_after_all_may_take_others,
    "
    pool h100 gpus=8 grace=120
    tenant a
    group a/g h100 0..1
    tenant b
    group b/g h100 0..4
    want b/g urgent 1x8 prio=1 since=5
    node n1 a/g used=8 age=7200
    node n2 b/g used=8 age=7200 prio=1 cordoned=100
    node n3 b/g used=8 age=7200 prio=1
    "
);

scenario!(
    nothing_is_taken_for_fairness_where_the_first_to_come_is_served_first,
    "
    pool h100 gpus=8 grace=300 order=fifo reclaim=fair
    tenant a
    group a/g h100 0..8
    want a/g long 5x8 since=900
    tenant b
    group b/g h100 0..8
    want b/g job 1x8 since=5
    node n1..n2 a/g used=8 age=7200
    "
);

scenario!(
    what_is_taken_back_goes_to_a_floor_that_waits_first,
    "
    pool h100 gpus=8 grace=300
    tenant p
    group p/private h100 1..1
    tenant u
    group u/g h100 0..4
    want u/g urgent 1x8 prio=5 since=5
    tenant s
    group s/g h100 0..8
    node n1..n3 s/g used=8 age=7200
    "
);
