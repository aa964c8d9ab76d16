//! What is planned in situations that people ask about. Each snapshot shows the fleet and the plan. Some were
//! found by the property tests: each of those plans was followed by another one.

#[path = "../support/mod.rs"]
mod support;

use berth_planner::{check, plan};
use support::{describe, executor, read_fleet};

/// Plans, sees to it that nothing is left to do when that was done, and describes the plan.
fn plan_and_describe(text: &str) -> String {
    let mut fleet = read_fleet(text);
    let first = plan(&fleet);
    assert_eq!(check(&fleet, &first), []);
    executor::apply(&mut fleet, &first);
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

mod gangs;
mod placement;
mod quotas;
mod reclaim;
mod release;
mod scale_up;
