use super::*;
use proptest::prelude::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_string(), (*v).to_string()))
        .collect()
}

fn pool(name: &str) -> Pool {
    Pool {
        name: name.into(),
        selector: labels(&[("pool", name)]),
        topology_key: Some("clique".into()),
    }
}

fn node(name: &str, pool: &str, clique: &str) -> Node {
    Node {
        name: name.into(),
        labels: labels(&[("pool", pool), ("clique", clique)]),
        owner: None,
        available: true,
    }
}

fn tenant(uid: &str, created: i64, count: usize) -> Tenant {
    let groups = vec![Group {
        name: "train".into(),
        pool: "h100".into(),
        count,
    }];
    Tenant {
        uid: uid.into(),
        created,
        groups,
        gone: false,
    }
}

fn owned(mut node: Node, uid: &str, draining: bool) -> Node {
    node.owner = Some(Owner {
        uid: uid.into(),
        group: "train".into(),
        pool: "h100".into(),
        draining,
    });
    node
}

fn assigned(plan: &Plan) -> Vec<(&str, &str)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Assign { node, tenant, .. } => Some((node.as_str(), tenant.as_str())),
            _ => None,
        })
        .collect()
}

#[test]
fn the_first_to_ask_gets_the_last_node() {
    let fleet = Fleet {
        pools: vec![pool("h100")],
        nodes: vec![node("n1", "h100", "a")],
        tenants: vec![tenant("late", 2, 1), tenant("early", 1, 1)],
    };
    let plan = plan(&fleet);
    assert_eq!(assigned(&plan), [("n1", "early")]);
    assert_eq!(plan.waiting["late"], "pool h100 has 0 free nodes and 1 more are needed");
}

#[test]
fn all_or_nothing_over_every_group() {
    let mut wants = tenant("a", 1, 1);
    wants.groups.push(Group {
        name: "cpu".into(),
        pool: "general".into(),
        count: 2,
    });
    let fleet = Fleet {
        pools: vec![pool("h100"), pool("general")],
        nodes: vec![node("n1", "h100", "a"), node("c1", "general", "")],
        tenants: vec![wants],
    };
    let plan = plan(&fleet);
    assert!(plan.actions.is_empty());
    assert!(plan.waiting["a"].contains("general"));
}

#[test]
fn the_tightest_group_that_fits_is_broken_up() {
    let fleet = Fleet {
        pools: vec![pool("h100")],
        nodes: ["a1", "a2", "a3", "a4", "b1", "b2"]
            .iter()
            .map(|name| node(name, "h100", &name[..1]))
            .collect(),
        tenants: vec![tenant("t", 1, 2)],
    };
    assert_eq!(assigned(&plan(&fleet)), [("b1", "t"), ("b2", "t")]);
}

#[test]
fn growth_stays_in_the_tenants_own_group() {
    let mut nodes: Vec<Node> = ["a1", "a2", "a3", "b1"]
        .iter()
        .map(|name| node(name, "h100", &name[..1]))
        .collect();
    nodes[0] = owned(nodes[0].clone(), "t", false);
    let fleet = Fleet {
        pools: vec![pool("h100")],
        nodes,
        tenants: vec![tenant("t", 1, 2)],
    };
    assert_eq!(assigned(&plan(&fleet)), [("a2", "t")]);
}

#[test]
fn a_request_larger_than_any_group_takes_the_largest_first() {
    let fleet = Fleet {
        pools: vec![pool("h100")],
        nodes: ["a1", "b1", "b2", "c1"]
            .iter()
            .map(|name| node(name, "h100", &name[..1]))
            .collect(),
        tenants: vec![tenant("t", 1, 3)],
    };
    assert_eq!(assigned(&plan(&fleet)), [("a1", "t"), ("b1", "t"), ("b2", "t")]);
}

#[test]
fn nodes_of_vanished_tenants_are_released_and_excess_is_drained() {
    let fleet = Fleet {
        pools: vec![pool("h100")],
        nodes: vec![
            owned(node("n1", "h100", "a"), "vanished", false),
            owned(node("n2", "h100", "a"), "t", false),
            owned(node("n3", "h100", "a"), "t", false),
        ],
        tenants: vec![tenant("t", 1, 1)],
    };
    assert_eq!(
        plan(&fleet).actions,
        [
            Action::Drain { node: "n3".into() },
            Action::Release { node: "n1".into() }
        ]
    );
}

#[test]
fn a_draining_node_is_kept_when_it_is_wanted_again_and_not_replaced_while_it_drains() {
    let fleet = |count| Fleet {
        pools: vec![pool("h100")],
        nodes: vec![owned(node("n1", "h100", "a"), "t", true)],
        tenants: vec![tenant("t", 1, count)],
    };
    assert_eq!(plan(&fleet(1)).actions, [Action::Keep { node: "n1".into() }]);
    assert!(plan(&fleet(0)).actions.is_empty());
}

#[test]
fn a_node_in_two_pools_or_not_available_is_given_to_nobody() {
    let mut second = pool("also");
    second.selector = labels(&[("clique", "a")]);
    let mut cordoned = node("n2", "h100", "b");
    cordoned.available = false;
    let fleet = Fleet {
        pools: vec![pool("h100"), second],
        nodes: vec![node("n1", "h100", "a"), cordoned],
        tenants: vec![tenant("t", 1, 1)],
    };
    assert!(plan(&fleet).actions.is_empty());
    assert_eq!(
        pool_of(&fleet.pools, &fleet.nodes[0].labels),
        Err(vec!["h100".to_string(), "also".to_string()])
    );
}

fn apply(fleet: &mut Fleet, plan: &Plan) {
    for action in &plan.actions {
        let (Action::Assign { node, .. } | Action::Drain { node } | Action::Keep { node } | Action::Release { node }) =
            action;
        let node = fleet.nodes.iter_mut().find(|n| &n.name == node).unwrap();
        match action {
            Action::Assign {
                tenant, group, pool, ..
            } => {
                assert!(node.owner.is_none(), "an owned node was assigned");
                node.owner = Some(Owner {
                    uid: tenant.clone(),
                    group: group.clone(),
                    pool: pool.clone(),
                    draining: false,
                });
            }
            Action::Drain { .. } => node.owner.as_mut().unwrap().draining = true,
            Action::Keep { .. } => node.owner.as_mut().unwrap().draining = false,
            Action::Release { .. } => node.owner = None,
        }
    }
}

proptest! {
    /// Whatever the fleet looks like: nobody gets more than asked, owned nodes stay, and a second plan is empty.
    #[test]
    fn plans_are_safe_and_settle(
        owners in prop::collection::vec(prop::option::of((0_usize..6, any::<bool>())), 0..12),
        counts in prop::collection::vec((0_usize..5, any::<bool>()), 0..5),
        available in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut fleet = Fleet { pools: vec![pool("h100")], ..Fleet::default() };
        for (i, owner) in owners.iter().enumerate() {
            let mut n = node(&format!("n{i}"), "h100", ["a", "b", "c"][i % 3]);
            n.available = available[i];
            if let Some((tenant, draining)) = owner {
                n = owned(n, &format!("t{tenant}"), *draining);
            }
            fleet.nodes.push(n);
        }
        for (i, (count, gone)) in counts.iter().enumerate() {
            let mut t = tenant(&format!("t{i}"), i64::try_from(i).unwrap(), *count);
            t.gone = *gone;
            fleet.tenants.push(t);
        }
        let first = plan(&fleet);
        let before = fleet.clone();
        apply(&mut fleet, &first);
        let second = plan(&fleet);
        // Nodes released in the first round may serve those who waited in the second; then all is settled.
        apply(&mut fleet, &second);
        prop_assert_eq!(plan(&fleet).actions, vec![]);
        for t in fleet.tenants.iter().filter(|t| !t.gone) {
            let keeps = fleet.nodes.iter().filter(|n| n.owner.as_ref().is_some_and(|o| o.uid == t.uid && !o.draining)).count();
            prop_assert!(keeps <= t.groups[0].count);
        }
        for (old, new) in before.nodes.iter().zip(&fleet.nodes) {
            if let (Some(a), Some(b)) = (&old.owner, &new.owner) {
                let changed_hands = a.uid != b.uid;
                let released = first.actions.contains(&Action::Release { node: old.name.clone() });
                prop_assert!(!changed_hands || released, "a node changed hands without a release");
            }
        }
    }
}
