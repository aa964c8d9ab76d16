//! Random histories: tenants come, go, grow, shrink and move, use more and less, Projects change their Organization, and quotas are set
//! and removed. After each event the sums of all levels agree with what the tenants have reserved and with what they use.

use super::{PODS, TENANTS, claim, limited, organization, project, record};
use crate::{Amounts, Claim, Key, QuotaUse, Tree, Usage, decide};
use berth_api::{Organization, Project, TreeQuota, TreeResource};
use proptest::prelude::*;
use std::collections::BTreeMap;

const ORGANIZATIONS: [&str; 2] = ["x", "y"];
const PROJECTS: [&str; 4] = ["a", "b", "c", "d"];
const RESOURCES: [TreeResource; 2] = [TENANTS, PODS];

#[derive(Clone, Debug)]
enum Event {
    Create {
        project: usize,
        amounts: [u64; 2],
    },
    Delete(usize),
    Resize {
        tenant: usize,
        amounts: [u64; 2],
    },
    /// A tenant uses so much.
    Use {
        tenant: usize,
        amounts: [u64; 2],
    },
    /// The namespace of a tenant goes to another Project.
    Move {
        tenant: usize,
        project: usize,
    },
    /// A Project goes to another Organization, or to none.
    Attach {
        project: usize,
        organization: Option<usize>,
    },
    /// A quota of a level is set or removed: Organizations come first, then Projects.
    SetQuota {
        level: usize,
        resource: usize,
        nominal: Option<u32>,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let amounts = || [0..4_u64, 0..4_u64];
    let event = prop_oneof![
        4 => (0..4_usize, amounts()).prop_map(|(project, amounts)| Event::Create { project, amounts }),
        1 => (0..20_usize).prop_map(Event::Delete),
        2 => (0..20_usize, amounts()).prop_map(|(tenant, amounts)| Event::Resize { tenant, amounts }),
        3 => (0..20_usize, amounts()).prop_map(|(tenant, amounts)| Event::Use { tenant, amounts }),
        1 => (0..20_usize, 0..4_usize).prop_map(|(tenant, project)| Event::Move { tenant, project }),
        1 => (0..4_usize, proptest::option::of(0..2_usize))
            .prop_map(|(project, organization)| Event::Attach { project, organization }),
        3 => (0..6_usize, 0..2_usize, proptest::option::weighted(0.8, 0..10_u32))
            .prop_map(|(level, resource, nominal)| Event::SetQuota { level, resource, nominal }),
    ];
    proptest::collection::vec(event, 1..60)
}

/// What the events left.
#[derive(Default)]
struct World {
    claims: Vec<Claim>,
    /// What each tenant uses, by UID.
    used: BTreeMap<String, Amounts>,
    created: usize,
    /// The Organization of each Project.
    above: [Option<usize>; PROJECTS.len()],
    quotas: BTreeMap<(usize, usize), u32>,
}

impl World {
    fn follow(&mut self, event: &Event) {
        let named = |amounts: [u64; 2]| RESOURCES.into_iter().zip(amounts).collect::<Amounts>();
        let count = self.claims.len();
        match *event {
            Event::Create { project, amounts } => {
                self.created += 1;
                let mut new = claim(&format!("t{:02}", self.created), 0, PROJECTS[project], &[]);
                new.requested = Some(named(amounts));
                self.claims.push(new);
            }
            Event::Delete(tenant) if count > 0 => {
                let gone = self.claims.remove(tenant % count);
                self.used.remove(&gone.uid);
            }
            Event::Resize { tenant, amounts } if count > 0 => {
                self.claims[tenant % count].requested = Some(named(amounts));
            }
            Event::Use { tenant, amounts } if count > 0 => {
                let uid = self.claims[tenant % count].uid.clone();
                self.used.insert(uid, named(amounts));
            }
            Event::Move { tenant, project } if count > 0 => {
                PROJECTS[project].clone_into(&mut self.claims[tenant % count].project);
            }
            Event::Attach { project, organization } => self.above[project] = organization,
            Event::SetQuota {
                level,
                resource,
                nominal,
            } => {
                self.quotas.remove(&(level, resource));
                self.quotas.extend(nominal.map(|nominal| ((level, resource), nominal)));
            }
            Event::Delete(_) | Event::Resize { .. } | Event::Use { .. } | Event::Move { .. } => {}
        }
    }

    fn quotas_of(&self, level: usize) -> Vec<TreeQuota> {
        let all = self.quotas.iter().filter(|((of, _), _)| *of == level);
        all.map(|((_, resource), nominal)| limited(RESOURCES[*resource].clone(), *nominal))
            .collect()
    }

    fn tree(&self) -> Tree {
        let organizations: Vec<Organization> = ORGANIZATIONS
            .iter()
            .enumerate()
            .map(|(level, name)| organization(name, &self.quotas_of(level)))
            .collect();
        let projects: Vec<Project> = PROJECTS
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let above = self.above[index].map(|above| ORGANIZATIONS[above]);
                project(name, above, 1, &[], &self.quotas_of(ORGANIZATIONS.len() + index))
            })
            .collect();
        Tree::new(&organizations, &projects)
    }

    /// What the tenants of a Project have.
    fn held(&self, project: &str, resource: &TreeResource) -> u64 {
        let own = self.claims.iter().filter(|claim| claim.project == project);
        own.filter_map(|claim| claim.reserved.as_ref()?.get(resource)).sum()
    }

    /// What the tenants of a Project use.
    fn used(&self, project: &str, resource: &TreeResource) -> u64 {
        let own = self.claims.iter().filter(|claim| claim.project == project);
        own.filter_map(|claim| self.used.get(&claim.uid)?.get(resource)).sum()
    }

    /// Adds what the tenants use.
    fn add_used(&self, usage: &mut Usage<'_>) {
        for claim in &self.claims {
            for (resource, amount) in self.used.get(&claim.uid).into_iter().flatten() {
                usage.add_used(&claim.project, &Key::of(resource.clone()), *amount);
            }
        }
    }

    fn check(&self, usage: &Usage<'_>) {
        for resource in RESOURCES {
            let key = Key::of(resource.clone());
            let sums = |all: Vec<QuotaUse>| {
                let found = all.into_iter().find(|at| at.key == key);
                found.map(|at| [at.reserved, at.used])
            };
            let leaves = PROJECTS.map(|name| (name, sums(usage.of_project(name))));
            for (name, found) in leaves {
                if let Some(found) = found {
                    let expected = [self.held(name, &resource), self.used(name, &resource)];
                    assert_eq!(found, expected, "Project {name}, {resource:?}");
                }
            }
            let all = add_up(leaves.iter().filter_map(|(_, found)| *found));
            assert_eq!(sums(usage.of_root()).unwrap_or_default(), all, "{resource:?}");
            for (index, name) in ORGANIZATIONS.iter().enumerate() {
                let own = leaves.iter().zip(self.above).filter(|(_, above)| *above == Some(index));
                let expected = add_up(own.filter_map(|((_, found), _)| *found));
                if let Some(found) = sums(usage.of_organization(name)) {
                    assert_eq!(found, expected, "Organization {name}, {resource:?}");
                }
            }
        }
    }
}

/// The sum of what is reserved, and of what is used.
fn add_up(levels: impl Iterator<Item = [u64; 2]>) -> [u64; 2] {
    levels.fold([0, 0], |sum, level| [sum[0] + level[0], sum[1] + level[1]])
}

proptest! {
    #[test]
    fn the_sum_of_what_projects_reserve_and_use_is_that_of_the_root(events in events()) {
        let mut world = World::default();
        for event in &events {
            world.follow(event);
            let tree = world.tree();
            let mut outcome = decide(&tree, &world.claims);
            record(&mut world.claims, &outcome);
            world.add_used(&mut outcome.usage);
            world.check(&outcome.usage);
        }
    }
}
