//! Plans for situations that people ask about. Each snapshot shows the fleet and the plan. Some situations were found by
//! the property tests, where a second plan still had actions.

#[path = "../support/mod.rs"]
mod support;

use berth_planner::{Fleet, Plan, check, plan};
use support::{describe, executor, read_fleet};

/// Makes a plan, checks it, and carries it out.
fn advance(fleet: &mut Fleet) -> Plan {
    let made = plan(fleet);
    assert_eq!(check(fleet, &made), []);
    executor::apply(fleet, &made);
    made
}

/// Makes a plan, checks that there are no actions left after it, and describes it.
fn plan_and_describe(text: &str) -> String {
    let mut fleet = read_fleet(text);
    let first = advance(&mut fleet);
    let second = plan(&fleet);
    assert!(
        second.actions.is_empty(),
        "the plan\n{}\nis followed by\n{}",
        describe(&first),
        describe(&second)
    );
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    format!("{}\n=>\n{}", lines.join("\n"), describe(&first))
}

macro_rules! scenario {
    ($name:ident, $text:literal) => {
        #[test]
        fn $name() {
            insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
                insta::assert_snapshot!(stringify!($name), plan_and_describe($text));
            });
        }
    };
}

mod divided;
mod gangs;
mod kept_by_pods;
mod lacking;
mod lacking_limits;
mod minimums;
mod placement;
mod quotas;
mod reclaim;
mod release;
mod repair;
mod scale_up;
mod shared_pauses;
mod shared_quotas;
mod unmet_minimums;
mod unused;
mod waiting;
