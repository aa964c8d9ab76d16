//! Quotas, fair shares and the order of serving.

use super::plan_and_describe;

scenario!(
    free_nodes_are_shared_by_weight,
    "
    pool h100 gpus=8
    quota small weight=1
    quota large weight=2
    tenant a quota=small
    group a/g h100 0..20
    demand a/g job 20x8 since=9
    tenant b quota=large
    group b/g h100 0..20
    demand b/g job 20x8 since=5
    node n01..n09 free
    "
);

scenario!(
    fifo_pools_serve_the_longest_wait_first,
    "
    pool h100 gpus=8 order=fifo
    tenant a
    group a/g h100 0..8
    demand a/g late 3x8 since=10
    tenant b
    group b/g h100 0..8
    demand b/g early 3x8 since=20
    node n1..n4 free
    "
);

scenario!(
    limits_hold_on_every_level,
    "
    pool h100 gpus=8
    quota org limit=24
    quota team parent=org
    quota rest parent=org
    tenant a quota=team
    group a/g h100 0..8
    demand a/g job 4x8 since=9
    tenant b quota=rest
    group b/g h100 0..1
    demand b/g job 4x8 since=9
    node n1..n8 free
    "
);

scenario!(
    a_node_that_reports_fewer_gpus_counts_for_those_that_it_had,
    "
    pool h100 gpus=8
    quota team nominal=8 limit=16
    tenant a quota=team
    group a/g h100 0..8
    demand a/g job 4x8 since=9
    node n1 a/g gpus=1 recorded=8 used=1 age=60
    node n2..n4 free
    "
);

scenario!(
    gpus_that_are_not_lent_stay_free_for_their_quota,
    "
    pool h100 gpus=8
    quota vision nominal=24 lending=8
    tenant v quota=vision
    group v/g h100 0..4
    tenant s
    group s/g h100 0..8
    demand s/g job 4x8 since=9
    node n1..n4 free
    "
);

scenario!(
    what_a_team_does_not_lend_is_not_for_other_teams_of_its_organization,
    "
    pool h100 gpus=8
    quota org
    quota blue parent=org nominal=8
    quota red parent=org nominal=16 lending=8
    tenant r quota=red
    group r/g h100 0..4
    tenant b quota=blue
    group b/g h100 0..4
    demand b/g job 4x8 since=9
    node n1..n3 free
    "
);

scenario!(
    a_limit_below_the_minimums_is_enforced,
    "
    pool h100 gpus=8 grace=300
    quota speech limit=8
    tenant a quota=speech
    group a/private h100 2..2
    node n1..n2 a/private used=8 age=60
    node n3 free
    "
);

scenario!(
    nominal_quota_of_a_team_is_not_for_other_teams,
    "
    pool h100 gpus=8 grace=300
    quota org nominal=24
    quota team parent=org nominal=8
    tenant t quota=team
    group t/g h100 0..4
    demand t/g job 1x8 since=5
    tenant o quota=org
    group o/g h100 0..4
    demand o/g urgent 1x8 prio=1 since=5
    node n1 free
    "
);

scenario!(
    limits_of_several_pools_hold_together,
    "
    pool h100 gpus=8 product=H100
    pool h100-b gpus=8 product=H100
    pool l40s gpus=8
    quota team total=32 product-limit=H100:24
    tenant a quota=team
    group a/one h100 0..8
    demand a/one job 2x8 since=9
    tenant b quota=team
    group b/two h100-b 0..8
    demand b/two job 3x8 since=9
    tenant c quota=team
    group c/three l40s 0..8
    demand c/three job 3x8 since=9
    node x1..x4 pool=h100 free
    node y1..y4 pool=h100-b free
    node z1..z4 pool=l40s free
    "
);

scenario!(
    below_a_missing_quota_tenants_keep_their_nodes_and_get_no_more,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=32 parent=research
    tenant a quota=vision
    group a/g h100 2..8
    demand a/g job 1x8 since=5
    tenant b
    group b/g h100 0..8
    demand b/g job 1x8 since=9
    node n1 a/g used=8 age=7200
    node n2 b/g used=8 age=7200
    node n3..n5 free
    "
);

scenario!(
    nodes_that_drain_count_until_their_pods_have_ended,
    "
    pool h100 gpus=8
    quota vision limit=16
    tenant a quota=vision
    group a/renamed h100 1..1
    tenant b quota=vision
    group b/g h100 0..8
    demand b/g job 1x8 since=5
    node n1 draining=a used=8
    node n2 a/before used=8 age=60
    node n3..n5 free
    "
);

scenario!(
    nodes_that_drain_are_no_reason_to_take_others,
    "
    pool h100 gpus=8 grace=300
    quota vision limit=16
    tenant a quota=vision
    group a/g h100 1..8
    demand a/g more 1x8 since=5
    node n1..n2 a/g used=8 age=60
    node n3..n4 draining=a used=8
    node n5 free
    "
);

scenario!(
    nominal_quota_that_drains_is_in_use,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=8
    tenant a quota=vision
    group a/renamed h100 0..1
    demand a/renamed job 1x8 since=5 zone=east
    tenant b
    group b/g h100 0..8
    node n1 draining=a used=8 zone=west
    node n2..n3 b/g used=8 age=7200 zone=east
    "
);
