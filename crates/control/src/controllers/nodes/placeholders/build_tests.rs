use super::*;
use berth_api::{AutoscalingSpec, HostNodePoolSpec};
use berth_planner::{PodSet, ScaleUp};

const GPU: &str = "nvidia.com/gpu";

fn pool() -> HostNodePool {
    HostNodePool::new(
        "h100",
        HostNodePoolSpec {
            node_selector: [("product".to_owned(), "H100".to_owned())].into(),
            gpu_resource_name: Some(GPU.into()),
            topology_key: Some("rack".into()),
            autoscaling: Some(AutoscalingSpec {
                tolerated_taints: vec!["dedicated".into()],
                ..AutoscalingSpec::default()
            }),
            ..HostNodePoolSpec::default()
        },
    )
}

fn amounts(pairs: &[(&str, u64)]) -> Amounts {
    pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), *amount))
        .collect()
}

fn shortage(group: &str, name: &str, count: u32, each: &[(&str, u64)]) -> Shortage {
    Shortage {
        tenant: "uid".into(),
        node_group: group.into(),
        name: name.into(),
        pod_sets: vec![PodSet {
            count,
            requests: amounts(each),
        }],
        ..Shortage::default()
    }
}

fn plan(shortages: Vec<Shortage>) -> Plan {
    let scale_up = ScaleUp {
        shortages,
        ..ScaleUp::default()
    };
    Plan {
        scale_ups: [("h100".to_owned(), scale_up)].into(),
        ..Plan::default()
    }
}

fn placeholders_with(pool: HostNodePool, shortages: Vec<Shortage>, demand: &TenantDemand) -> Vec<PlaceholderSet> {
    let settings = Settings {
        image: "registry.example.com/pause:1".into(),
        pull_secrets: vec!["pull".into()],
    };
    let slugs = [("uid".to_owned(), "vision-abc".to_owned())].into();
    build_placeholder_sets(&settings, &[Arc::new(pool)], &slugs, &plan(shortages), demand)
}

fn placeholders(shortages: Vec<Shortage>) -> Vec<PlaceholderSet> {
    placeholders_with(pool(), shortages, &TenantDemand::default())
}

fn spec(one: &PlaceholderSet) -> Value {
    serde_json::to_value(one.template.spec.as_ref().unwrap()).unwrap()
}

fn with_affinity(affinity: &str, terms: &Value) -> (Shortage, TenantDemand) {
    let mut one = shortage("burst", "train", 1, &[(GPU, 8)]);
    one.selector.insert(affinity.into(), "true".into());
    let rules = NodeRules {
        terms: serde_json::from_value(terms.clone()).unwrap(),
        ..NodeRules::default()
    };
    let mut demand = TenantDemand::default();
    demand.affinities.insert(affinity.into(), (rules, "burst".into()));
    (one, demand)
}

#[test]
fn a_placeholder_has_the_requests_of_the_pod_on_any_free_node() {
    let each = [(GPU, 8), ("MiB memory", 512), ("millicpu", 1500), ("pods", 1)];
    let mut one = shortage("burst", "default/train", 3, &each);
    one.selector.insert("zone".into(), "a".into());
    let all = placeholders(vec![one]);
    assert_eq!((all.len(), all[0].count), (1, 3));
    insta::assert_yaml_snapshot!("placeholder", all[0].pod(&all[0].name(0)));
}

#[test]
fn placeholders_that_are_alike_are_counted_together() {
    let alike = || {
        vec![
            shortage("burst", "a", 2, &[(GPU, 1)]),
            shortage("burst", "b", 3, &[(GPU, 1)]),
        ]
    };
    let all = placeholders(alike());
    assert_eq!((all.len(), all[0].count), (1, 5));
    assert_eq!(placeholders(alike())[0].kind, all[0].kind);
    let mut gang = shortage("burst", "a", 2, &[(GPU, 1)]);
    gang.gang = true;
    let unlike = vec![
        gang,
        shortage("burst", "a", 1, &[(GPU, 2)]),
        shortage("burst", "a", 1, &[(GPU, 1)]),
        shortage("other", "a", 1, &[(GPU, 1)]),
    ];
    assert_eq!(placeholders(unlike).len(), 4);
}

#[test]
fn pods_that_need_nodes_of_their_own_stay_apart() {
    let apart = |shortage| spec(&placeholders(vec![shortage])[0])["affinity"]["podAntiAffinity"].clone();
    let rules = |value: &Value| {
        value["requiredDuringSchedulingIgnoredDuringExecution"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        rules(&apart(shortage("burst", "a", 2, &[(GPU, 1)]))),
        1,
        "from other groups only"
    );
    let alone = format!("{ANTI_AFFINITY_PREFIX}{{}}");
    assert_eq!(rules(&apart(shortage("burst", "a", 2, &[(GPU, 1), (&alone, 1)]))), 2);
    let mut whole = shortage("own", "", 2, &[(GPU, 8)]);
    whole.whole_nodes = true;
    assert_eq!(rules(&apart(whole)), 2);
}

#[test]
fn gangs_of_single_domain_ask_for_one() {
    let mut gang = shortage("burst", "a", 2, &[(GPU, 8)]);
    gang.single_domain = true;
    let one = &placeholders(vec![gang])[0];
    let affinity = spec(one)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].clone();
    assert_eq!(affinity[0]["topologyKey"], "rack");
    assert_eq!(
        affinity[0]["labelSelector"]["matchLabels"][labels::PLACEHOLDER_KIND],
        one.kind.as_str()
    );
}

#[test]
fn affinities_are_passed_on_as_far_as_a_free_node_can_satisfy_them() {
    let (one, demand) = with_affinity(
        "x",
        &json!([
            {"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["a"]},
                {"key": "berth.dev/node-group", "operator": "In", "values": ["burst"]},
            ]},
            {"matchExpressions": [{"key": "berth.dev/pool", "operator": "In", "values": ["l40s"]}]},
        ]),
    );
    let all = placeholders_with(pool(), vec![one], &demand);
    let terms = &spec(&all[0])["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(
        terms.as_array().unwrap().len(),
        1,
        "the other one asks for another pool"
    );
    let keys: Vec<&str> = terms[0]["matchExpressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    assert_eq!(
        keys,
        ["berth.dev/state", "berth.dev/tenant", "berth.dev/shared-pool", "zone"]
    );
    let (one, demand) = with_affinity(
        "x",
        &json!([{"matchExpressions": [{"key": "berth.dev/pool", "operator": "In", "values": ["l40s"]}]}]),
    );
    assert!(placeholders_with(pool(), vec![one], &demand).is_empty());
}

#[test]
fn pods_that_a_new_node_does_not_help_get_no_placeholders() {
    let one = || shortage("burst", "a", 2, &[(GPU, 1)]);
    let mut pinned = one();
    pinned.selector.insert(HOST_NAME.into(), "n1".into());
    assert!(placeholders(vec![pinned]).is_empty());
    assert!(placeholders(vec![shortage("burst", "a", 1, &[("dra:gpu.nvidia.com", 1)])]).is_empty());
    let mut unknown = one();
    unknown.tenant = "gone".into();
    assert!(placeholders(vec![unknown]).is_empty());
    let mut off = pool();
    off.spec.autoscaling = None;
    assert!(placeholders_with(off, vec![one()], &TenantDemand::default()).is_empty());
}

#[test]
fn amounts_become_container_requests() {
    let resources = container_resources(&amounts(&[
        ("nvidia.com/mig-1g.10gb", 2),
        ("MiB hugepages-2Mi", 64),
        ("MiB ephemeral-storage", 10),
        ("anti-affinity: {\"a/b\":1}", 1),
    ]));
    assert_eq!(
        resources,
        json!({
            "requests": {"nvidia.com/mig-1g.10gb": "2", "hugepages-2Mi": "64Mi", "ephemeral-storage": "10Mi"},
            "limits": {"nvidia.com/mig-1g.10gb": "2", "hugepages-2Mi": "64Mi"},
        })
    );
}
