//! Tenants come, go, change what they request and move between Projects of a random tree: what holds after each step.

use super::{TENANTS, claim, organization, project, record, with_limits};
use crate::{Amounts, Claim, Key, Tree, decide};
use berth_api::{Amount, Organization, Project, TreeQuota};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A random tree: quotas of two Organizations, and of two Projects in each.
fn trees() -> impl Strategy<Value = (Vec<Organization>, Vec<Project>)> {
    let quota = || {
        let limits = (0..8_u32, proptest::option::of(0..8_u32), proptest::option::of(0..8_u32));
        proptest::option::of(limits).prop_map(|limits| {
            let quota = limits.map(|(nominal, lending, borrowing)| {
                with_limits(nominal, lending.map(|lending| lending.min(nominal)), borrowing)
            });
            quota.into_iter().collect::<Vec<TreeQuota>>()
        })
    };
    (
        proptest::collection::vec(quota(), 2),
        proptest::collection::vec(quota(), 4),
    )
        .prop_map(|(above, below)| -> (Vec<Organization>, Vec<Project>) {
            let organizations = ["x", "y"].iter().zip(&above);
            let projects = ["a", "b", "c", "d"].iter().zip(&below).enumerate();
            (
                organizations.map(|(name, quotas)| organization(name, quotas)).collect(),
                projects
                    .map(|(number, (name, quotas))| {
                        let above = if number < 2 { "x" } else { "y" };
                        project(name, Some(above), 1, &[], quotas)
                    })
                    .collect(),
            )
        })
}

#[derive(Clone, Debug)]
enum Step {
    Create { project: usize, amount: u64 },
    Delete(usize),
    Resize { tenant: usize, amount: u64 },
    Move { tenant: usize, project: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4_usize, 1..4_u64).prop_map(|(project, amount)| Step::Create { project, amount }),
        1 => (0..20_usize).prop_map(Step::Delete),
        1 => (0..20_usize, 0..4_u64).prop_map(|(tenant, amount)| Step::Resize { tenant, amount }),
        1 => (0..20_usize, 0..4_usize).prop_map(|(tenant, project)| Step::Move { tenant, project }),
    ];
    proptest::collection::vec(step, 1..40)
}

fn follow(claims: &mut Vec<Claim>, number: usize, step: &Step, projects: &[Project]) {
    let name = |project: usize| projects[project].metadata.name.clone().unwrap();
    let count = claims.len();
    match *step {
        Step::Create { project, amount } => {
            let mut new = claim(&format!("t{number:02}"), 0, &name(project), &[]);
            new.requested = Some(Amounts::from([(TENANTS, amount)]));
            claims.push(new);
        }
        Step::Delete(tenant) if count > 0 => {
            claims.remove(tenant % count);
        }
        Step::Resize { tenant, amount } if count > 0 => {
            claims[tenant % count].requested = Some(Amounts::from([(TENANTS, amount)]));
            claims[tenant % count].at_most = Amounts::from([(TENANTS, 0)]);
        }
        Step::Move { tenant, project } if count > 0 => claims[tenant % count].project = name(project),
        _ => {}
    }
}

/// What tenants have, by Project.
fn held(claims: &[Claim]) -> BTreeMap<&str, u64> {
    let mut held = BTreeMap::new();
    for claim in claims {
        let amount = claim.reserved.as_ref().and_then(|amounts| amounts.get(&TENANTS));
        *held.entry(claim.project.as_str()).or_default() += amount.copied().unwrap_or(0);
    }
    held
}

/// Limits of a level, if it lists the resource: nominal quota, what it lends at most, what it borrows at most.
fn limits_of(quotas: &[TreeQuota]) -> Option<(u64, Option<u64>, Option<u64>)> {
    let quota = quotas.first()?;
    let value = |amount: &Option<Amount>| amount.as_ref().and_then(Amount::value);
    Some((
        quota.nominal_quota.value()?,
        value(&quota.lending_limit),
        value(&quota.borrowing_limit),
    ))
}

proptest! {
    #[test]
    fn sums_agree_and_the_order_of_events_does_not_matter((organizations, projects) in trees(), steps in steps()) {
        let tree = Tree::new(&organizations, &projects);
        let mut claims = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            follow(&mut claims, number, step, &projects);
            let outcome = decide(&tree, &claims);
            let mut reversed = claims.clone();
            reversed.reverse();
            let other = decide(&tree, &reversed).decisions;
            prop_assert_eq!(&other, &outcome.decisions);
            record(&mut claims, &outcome);
            let held = held(&claims);
            for project in &projects {
                let name = project.metadata.name.as_deref().unwrap();
                for used in outcome.usage.of_project(name) {
                    prop_assert_eq!(used.reserved, held.get(name).copied().unwrap_or(0), "Project {}", name);
                }
            }
            for organization in &organizations {
                let name = organization.metadata.name.as_deref().unwrap();
                let of_it = projects.iter().filter(|project| project.spec.organization_name.as_deref() == Some(name));
                let sum: u64 = of_it.map(|project| held.get(project.metadata.name.as_deref().unwrap()).copied().unwrap_or(0)).sum();
                for used in outcome.usage.of_organization(name) {
                    prop_assert_eq!(used.reserved, sum, "Organization {}", name);
                }
            }
            // Nothing changes without an event.
            let mut again = claims.clone();
            record(&mut again, &decide(&tree, &claims));
            prop_assert_eq!(&again, &claims);
        }
    }

    #[test]
    fn without_moves_no_level_exceeds_what_it_may_borrow_and_others_lend((organizations, projects) in trees(), steps in steps()) {
        let tree = Tree::new(&organizations, &projects);
        let mut claims = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            if matches!(step, Step::Move { .. }) {
                continue;
            }
            follow(&mut claims, number, step, &projects);
            let outcome = decide(&tree, &claims);
            record(&mut claims, &outcome);
            let held = held(&claims);
            for project in &projects {
                let name = project.metadata.name.as_deref().unwrap();
                let used = held.get(name).copied().unwrap_or(0);
                if let Some((nominal, _, Some(borrowing))) = limits_of(&project.spec.quotas) {
                    prop_assert!(used <= nominal + borrowing, "{} uses {} of {} + {}", name, used, nominal, borrowing);
                }
                // What it does not lend is there for it, unless its Organization may not have more.
                let organization = organizations.iter().find(|one| one.metadata.name == project.spec.organization_name);
                let quotas = &organization.unwrap().spec.quotas;
                if let (Some((nominal, Some(lending), _)), None) = (limits_of(&project.spec.quotas), limits_of(quotas)) {
                    let left = outcome.usage.available(name, &Key::of(TENANTS)).unwrap();
                    prop_assert!(left + used >= nominal - lending, "{} has {} left and uses {}", name, left, used);
                }
            }
            for organization in &organizations {
                let name = organization.metadata.name.as_deref().unwrap();
                if let Some((_, _, Some(borrowing))) = limits_of(&organization.spec.quotas) {
                    let used = &outcome.usage.of_organization(name)[0];
                    prop_assert!(used.borrowed() <= borrowing, "{} borrows {} of {}", name, used.borrowed(), borrowing);
                }
            }
        }
    }
}
