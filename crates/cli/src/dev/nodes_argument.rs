//! The value of `--nodes`: the type and number of nodes.

use std::str::FromStr;

use berth_local::{NodePlan, NodePlanError};

/// The value of `--nodes`: a type, a plan, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodesArgument {
    /// Whether they are real; none if the type was not given.
    pub(crate) real: Option<bool>,
    /// How many nodes of each shape; none if that was not given.
    pub(crate) plan: Option<NodePlan>,
}

impl FromStr for NodesArgument {
    type Err = NodePlanError;

    fn from_str(text: &str) -> Result<Self, NodePlanError> {
        let (kind, plan) = text.split_once(':').unwrap_or(match text {
            "real" | "simulated" => (text, ""),
            plan => ("", plan),
        });
        let real = match kind {
            "real" => Some(true),
            "simulated" => Some(false),
            "" => None,
            // No shape has a colon in its name, so this returns an error.
            _ => text.parse::<NodePlan>().map(|_| None)?,
        };
        let plan = (!plan.is_empty()).then(|| plan.parse()).transpose()?;
        Ok(Self { real, plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_given_as_a_type_a_plan_or_both() {
        let parse = |text: &str| text.parse::<NodesArgument>().unwrap();
        let plan = Some("h100=4,cpu=1".parse().unwrap());
        let argument = |real, plan| NodesArgument { real, plan };
        assert_eq!(parse("real"), argument(Some(true), None));
        assert_eq!(parse("simulated"), argument(Some(false), None));
        assert_eq!(parse("h100=4,cpu=1"), argument(None, plan.clone()));
        assert_eq!(parse("real:h100=4,cpu=1"), argument(Some(true), plan.clone()));
        assert_eq!(parse("simulated:h100=4,cpu=1"), argument(Some(false), plan));
        for wrong in ["virtual", "virtual:cpu=1", "real:a100=1", "real:cpu"] {
            assert!(wrong.parse::<NodesArgument>().is_err(), "{wrong}");
        }
    }
}
