//! Random histories: tenants come, go, grow, shrink and move, Projects change their Organization, and quotas are set and removed. After
//! each event the use of all levels agrees with what the tenants have.

use super::{PODS, TENANTS, claim, limited, organization, project, record};
use crate::{Amounts, Claim, Key, Tree, Usage, decide};
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
    created: usize,
    /// The Organization of each Project.
    above: [Option<usize>; PROJECTS.len()],
    quotas: BTreeMap<(usize, usize), u32>,
}

impl World {
    fn follow(&mut self, event: &Event) {
        let requested = |amounts: [u64; 2]| Some(RESOURCES.into_iter().zip(amounts).collect::<Amounts>());
        let count = self.claims.len();
        match *event {
            Event::Create { project, amounts } => {
                self.created += 1;
                let mut new = claim(&format!("t{:02}", self.created), 0, PROJECTS[project], &[]);
                new.requested = requested(amounts);
                self.claims.push(new);
            }
            Event::Delete(tenant) if count > 0 => {
                self.claims.remove(tenant % count);
            }
            Event::Resize { tenant, amounts } if count > 0 => {
                self.claims[tenant % count].requested = requested(amounts);
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
            Event::Delete(_) | Event::Resize { .. } | Event::Move { .. } => {}
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

    fn check(&self, usage: &Usage<'_>) {
        for resource in RESOURCES {
            let key = Key::of(resource.clone());
            let used_by =
                |all: Vec<crate::QuotaUse>| all.into_iter().find(|used| used.key == key).map(|used| used.used);
            let leaves = PROJECTS.map(|name| (name, used_by(usage.of_project(name))));
            for (name, used) in leaves {
                if let Some(used) = used {
                    assert_eq!(used, self.held(name, &resource), "Project {name}, {resource:?}");
                }
            }
            let sum: u64 = leaves.iter().filter_map(|(_, used)| *used).sum();
            assert_eq!(usage.of_root(&key), sum, "{resource:?}");
            for (index, name) in ORGANIZATIONS.iter().enumerate() {
                let own = leaves.iter().zip(self.above).filter(|(_, above)| *above == Some(index));
                let sum: u64 = own.filter_map(|((_, used), _)| *used).sum();
                if let Some(used) = used_by(usage.of_organization(name)) {
                    assert_eq!(used, sum, "Organization {name}, {resource:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn the_sum_of_what_projects_use_is_what_the_root_uses(events in events()) {
        let mut world = World::default();
        for event in &events {
            world.follow(event);
            let tree = world.tree();
            let outcome = decide(&tree, &world.claims);
            record(&mut world.claims, &outcome);
            world.check(&outcome.usage);
        }
    }
}
