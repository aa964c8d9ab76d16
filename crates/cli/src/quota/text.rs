//! The tree of quotas as text.

use berth_api::{TreeQuotaStatus, UserStatus};

use super::{LevelView, QuotaView};
use crate::output::{join_lines, plural};

/// Characters of a bar.
const BAR: u64 = 20;

pub(super) fn describe(view: &QuotaView) -> String {
    let mut lines = Vec::new();
    // One level is all there is.
    if view.levels.len() > 1 && !view.total.is_empty() {
        lines.push("All Organizations and Projects".to_owned());
        describe_quotas(&view.total, "", &mut lines);
    }
    for level in &view.levels {
        describe_level(level, "", &mut lines);
    }
    if let Some(why) = &view.levels_not_shown {
        lines.push(format!("Organizations and Projects are not shown: {why}"));
        let waits = view
            .waiting
            .iter()
            .map(|wait| format!("{}: {}", wait.tenant, wait.message));
        lines.extend(waits);
        lines.push("`berth get NAME` shows what is reserved for a tenant, and what it uses".into());
    } else if let Some(namespace) = &view.namespace_without_project {
        lines.push(format!(
            "Namespace {namespace} belongs to no Project: no quotas apply to its tenants besides those of their classes."
        ));
    } else if view.levels.is_empty() {
        lines.push("There are no Organizations and no Projects: no quotas apply besides those of classes.".into());
    } else if view.tenants_without_project > 0 {
        lines.push(format!("Tenants without a Project: {}", view.tenants_without_project));
    }
    join_lines(&lines)
}

fn describe_level(level: &LevelView, indent: &str, lines: &mut Vec<String>) {
    let waiting = match level.waiting_tenants {
        0 => String::new(),
        waiting => format!(", {waiting} waiting for quota"),
    };
    let kind = level.kind;
    lines.push(format!(
        "{indent}{kind} {}: {}{waiting}",
        level.name,
        plural(level.tenants.into(), "tenant")
    ));
    lines.extend(level.problems.iter().map(|problem| format!("{indent}  ! {problem}")));
    describe_quotas(&level.quotas, indent, lines);
    for user in &level.users {
        describe_user(user, &format!("{indent}  "), lines);
    }
    if let Some(number) = level.users_not_listed {
        lines.push(format!(
            "{indent}  and {} with pods",
            plural(number.into(), "more user")
        ));
    }
    for wait in &level.waiting {
        lines.push(format!("{indent}  {}: {}", wait.tenant, wait.message));
    }
    for project in &level.projects {
        describe_level(project, &format!("{indent}  "), lines);
    }
}

fn describe_quotas(quotas: &[TreeQuotaStatus], indent: &str, lines: &mut Vec<String>) {
    let names: Vec<String> = quotas.iter().map(TreeQuotaStatus::name).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    for (quota, name) in quotas.iter().zip(&names) {
        lines.push(format!("{indent}  {name:<width$}  {}", describe_quota(quota)));
    }
}

fn describe_user(user: &UserStatus, indent: &str, lines: &mut Vec<String>) {
    let waiting = match user.waiting_pods {
        0 => String::new(),
        1 => ": 1 pod waits".to_owned(),
        waiting => format!(": {} wait", plural(waiting.into(), "pod")),
    };
    lines.push(format!("{indent}User {}{waiting}", user.user));
    let names = user.resources.iter().map(|resource| resource.resource.len());
    let width = names.max().unwrap_or_default();
    for resource in &user.resources {
        let bar = draw_bar(resource.used, resource.used, resource.limit);
        let (name, used, limit) = (&resource.resource, resource.used, resource.limit);
        lines.push(format!("{indent}  {name:<width$}  [{bar}] {used} of {limit}"));
    }
    if !user.message.is_empty() {
        lines.push(format!("{indent}  {}", user.message));
    }
}

/// A bar of what is used (`#`) of what is reserved (`=`) of a quota.
fn draw_bar(used: u64, reserved: u64, nominal: u64) -> String {
    let filled = |amount: u64| match nominal {
        0 if amount == 0 => 0,
        0 => BAR,
        nominal => (amount.min(nominal).saturating_mul(BAR) / nominal).min(BAR),
    };
    let (used, reserved) = (filled(used), filled(reserved));
    (0..BAR)
        .map(|position| match position {
            position if position < used => '#',
            position if position < reserved => '=',
            _ => '.',
        })
        .collect()
}

/// A bar, and the numbers.
fn describe_quota(quota: &TreeQuotaStatus) -> String {
    let amount = |amount: u64| quota.resource.format_rounded(amount);
    let bar = draw_bar(quota.used.unwrap_or_default(), quota.reserved, quota.nominal_quota);
    let used = match quota.used {
        None => String::new(),
        Some(used) => format!("{} used, ", amount(used)),
    };
    let borrowed = match quota.borrowed {
        0 => String::new(),
        borrowed => format!(", {} borrowed", amount(borrowed)),
    };
    format!(
        "[{bar}] {used}{} reserved of {}{borrowed}",
        amount(quota.reserved),
        amount(quota.nominal_quota)
    )
}
