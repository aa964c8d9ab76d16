//! Text for people, made from typed reasons. No other file of the planner contains such text.

use crate::{
    ActionReason, Capacity, GpuScope, Impossible, NodeGroupPlan, RequestName, ScaleUp, ScaleUpBound, Seconds,
    Unplanned, Wait, WaitReason, Waiting,
};
use std::fmt::{self, Display, Formatter};

impl Display for RequestName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.gang { "gang " } else { "" }, self.name)
    }
}

impl Display for ActionReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequestWaited {
                request,
                tenant,
                waited,
            } => write!(f, "{request} of {tenant} waited {}", duration(*waited)),
            Self::BelowMinimum { tenant, min_nodes } => {
                write!(f, "{tenant} needs a minimum of {}", nodes(*min_nodes))
            }
            Self::RequiredNodesChanged { required_nodes } => {
                write!(f, "{} are reserved together now", nodes(*required_nodes))
            }
            Self::ReservationUnneeded => f.write_str("no request needs it any more"),
            Self::ReservationIncomplete => f.write_str("other nodes that were reserved with it are gone"),
            Self::TenantDeleted => f.write_str("its tenant is deleted"),
            Self::NodeGroupRemoved { tenant } => write!(f, "{tenant} no longer has its node group"),
            Self::NotReady { not_ready } => write!(f, "not Ready for {}", duration(*not_ready)),
            Self::OverMaximum { tenant, max_nodes: 0 } => write!(f, "{tenant} may have no nodes in this group"),
            Self::OverMaximum { tenant, max_nodes } => {
                write!(f, "{tenant} allows at most {} in this group", nodes(*max_nodes))
            }
            Self::OverQuota {
                quota,
                limit,
                scope,
                drain_at,
            } => {
                write!(f, "{quota} may have {limit} GPUs of {scope} at most")?;
                write_drain(f, *drain_at)
            }
            Self::Idle { idle } | Self::NeverUsed { idle } => write!(f, "idle for {}", duration(*idle)),
            Self::Unused { idle } => write!(f, "idle for {}, although pods wait for it", duration(*idle)),
            Self::Reclaimed {
                request,
                tenant,
                drain_at,
            } => {
                write!(f, "borrowed; {request} of {tenant} takes precedence")?;
                write_drain(f, *drain_at)
            }
            Self::ReclaimedForMinimum {
                tenant,
                node_group,
                drain_at,
            } => {
                write!(
                    f,
                    "borrowed; the minimum of group {node_group} of {tenant} takes precedence"
                )?;
                write_drain(f, *drain_at)
            }
            Self::NeededAgain { request } => write!(f, "{request} needs it again"),
            Self::NeededForMinimum { tenant } => write!(f, "{tenant} needs it for its minimum"),
            Self::StillInUse => f.write_str("it is in use, and no request waits for it any more"),
        }
    }
}

fn write_drain(f: &mut Formatter<'_>, drain_at: Option<Seconds>) -> fmt::Result {
    match drain_at {
        Some(time) => write!(f, "; the drain starts at {}", time_of_day(time)),
        None => Ok(()),
    }
}

impl NodeGroupPlan {
    /// Says why the node group waits; empty if it does not.
    pub fn message(&self) -> String {
        let mut parts: Vec<String> = self.waits.iter().map(|wait| wait.message(&self.pool)).collect();
        if self.more_waits > 0 {
            parts.push(format!("{} more wait", self.more_waits));
        }
        if self.requested_nodes > 0 {
            parts.push(format!("{} requested from an autoscaler", nodes(self.requested_nodes)));
        }
        parts.extend(self.unplanned.iter().map(ToString::to_string));
        if let Some(until) = self.served_last_until {
            parts.push(format!(
                "its tenant left nodes of pool {} unused: until {} others are served first, and no nodes are reclaimed for it",
                self.pool,
                time_of_day(until)
            ));
        } else if let Some(until) = self.reclaims_none_until {
            parts.push(format!(
                "another tenant of its Project left nodes of pool {} unused: until {} no nodes are reclaimed for this one",
                self.pool,
                time_of_day(until)
            ));
        }
        parts.join("; ")
    }
}

/// Without numbers: a message that changes with every pod would be written again and again.
impl Display for Unplanned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Later => "more pods wait than are planned at a time, and get nodes after the pods before them",
            Self::ManyConstraints => "a pod or gang has too many constraints, and brings no nodes",
            Self::LargeRules => "a pod has a node selector and node affinity that are too large, and brings no nodes",
        })
    }
}

impl Wait {
    fn message(&self, pool: &str) -> String {
        let reason = self.reason.message(pool);
        match (&self.waiting, &self.reason) {
            (Waiting::Minimum { min_nodes }, _) => {
                format!("{} of {} missing: {reason}", self.missing_nodes, nodes(*min_nodes))
            }
            (Waiting::Request(name), WaitReason::Impossible(_)) => format!("{name} can never be served: {reason}"),
            (Waiting::Request(name), _) => format!("{name} needs {} more: {reason}", nodes(self.missing_nodes)),
        }
    }
}

impl Display for GpuScope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(pool) => write!(f, "pool {pool}"),
            Self::AllPools => f.write_str("all pools"),
            Self::Product(product) => write!(f, "product {product}"),
        }
    }
}

impl WaitReason {
    fn message(&self, pool: &str) -> String {
        match self {
            Self::Impossible(impossible) => impossible.message(pool),
            Self::MaxNodes { max_nodes } => format!("the group may have {max_nodes} at most"),
            Self::QuotaLimit {
                quota,
                limit,
                scope,
                draining,
            } => {
                let most = format!("{quota} may have {limit} GPUs of {scope} at most");
                match draining {
                    0 => most,
                    _ => format!("{most}, and has {draining} on nodes that are being drained"),
                }
            }
            Self::MissingQuota { quota } => {
                format!("{quota} does not exist, so that the tenant keeps its nodes and gets no more")
            }
            Self::NotLent { gpus } => format!("{gpus} free GPUs of pool {pool} are nominal quota that is not lent"),
            Self::NoFreeNodes(capacity) | Self::NodesComing(capacity) => capacity.message(pool),
        }
    }
}

impl Impossible {
    fn message(&self, pool: &str) -> String {
        match self {
            Self::NoMatchingNode => {
                format!("no node of pool {pool} is large enough for one of its pods and has its labels")
            }
            Self::NoTopologyDomains => format!("pool {pool} has no topology domains"),
            Self::OverMaxNodes { needed, max_nodes } => {
                format!("it needs {} and the group may have {max_nodes} at most", nodes(*needed))
            }
            Self::OverQuota { gpus, quota, limit } => {
                format!("it needs {gpus} GPUs and {quota} may have {limit} at most")
            }
            Self::OverPoolMaximum { needed, max_nodes } => {
                format!(
                    "it needs {} and pool {pool} may have {max_nodes} at most",
                    nodes(*needed)
                )
            }
            Self::PoolTooSmall => format!("pool {pool} is too small for it"),
            Self::DomainTooSmall => format!("no topology domain of pool {pool} is large enough"),
        }
    }
}

impl Capacity {
    fn message(&self, pool: &str) -> String {
        let mut parts = vec![if self.pool_is_empty {
            format!("pool {pool} has no nodes")
        } else {
            format!("pool {pool} has {} free", nodes(self.free))
        }];
        if self.kept_for_others > 0 {
            parts.push(format!(
                "{} kept for requests that are served first",
                nodes(self.kept_for_others)
            ));
        }
        if self.recycling > 0 {
            parts.push(format!("{} being recycled", nodes(self.recycling)));
        }
        if self.reclaimed > 0 {
            let from = self.reclaimed_from.join(", ");
            let when = self
                .drain_at
                .map(|time| format!(", drain starts at {}", time_of_day(time)));
            parts.push(format!(
                "{} reclaimed from {from}{}",
                nodes(self.reclaimed),
                when.unwrap_or_default()
            ));
        }
        parts.join(", ")
    }
}

impl ScaleUp {
    /// Says why no more nodes are requested, if they are limited.
    pub fn limited_message(&self, pool: &str) -> Option<String> {
        let limited = self.limited_by.as_ref()?;
        let message = match &limited.bound {
            ScaleUpBound::MaxNodes {
                waiting,
                node_group,
                tenant,
                needed,
                max_nodes,
            } => {
                let name = match waiting {
                    Waiting::Minimum { .. } => format!("group {node_group}"),
                    Waiting::Request(name) => name.to_string(),
                };
                format!(
                    "{name} of {tenant} needs {} more, and pool {pool} may have {max_nodes} in all",
                    nodes(*needed)
                )
            }
            ScaleUpBound::MaxPods { max_pods } => {
                format!("nodes of pool {pool} are requested for {max_pods} pods at most")
            }
        };
        Some(match limited.more {
            0 => message,
            1 => format!("{message}; 1 more request is limited in the same way"),
            more => format!("{message}; {more} more requests are limited in the same way"),
        })
    }
}

/// A time of the day, UTC.
fn time_of_day(time: Seconds) -> String {
    let minutes = time.rem_euclid(86_400) / 60;
    format!("{:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// A duration in its largest unit.
fn duration(seconds: Seconds) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// `1 node`, `2 nodes`.
fn nodes(number: u32) -> String {
    if number == 1 {
        "1 node".into()
    } else {
        format!("{number} nodes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_names_pods_for_which_no_nodes_are_planned() {
        let plan = NodeGroupPlan {
            more_waits: 3,
            unplanned: [Unplanned::LargeRules, Unplanned::Later].into(),
            ..NodeGroupPlan::default()
        };
        let expected = "3 more wait; more pods wait than are planned at a time, and get nodes after the pods before them; \
                        a pod has a node selector and node affinity that are too large, and brings no nodes";
        assert_eq!(plan.message(), expected);
        assert_eq!(NodeGroupPlan::default().message(), "");
    }

    #[test]
    fn durations_and_times_are_short() {
        assert_eq!(
            [duration(119), duration(120), duration(7199), duration(7200)],
            ["119 s", "2 min", "119 min", "2 h"]
        );
        assert_eq!([time_of_day(43_200), time_of_day(-60)], ["12:00 UTC", "23:59 UTC"]);
        assert_eq!([nodes(0), nodes(1), nodes(2)], ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn a_group_that_may_have_no_nodes_is_not_said_to_allow_some() {
        let over = |max_nodes| ActionReason::OverMaximum {
            tenant: "ml/vision".into(),
            max_nodes,
        };
        assert_eq!(over(0).to_string(), "ml/vision may have no nodes in this group");
        assert_eq!(over(1).to_string(), "ml/vision allows at most 1 node in this group");
    }

    #[test]
    fn drain_times_are_rendered_only_if_they_are_later() {
        let reclaimed = |drain_at| ActionReason::Reclaimed {
            request: RequestName {
                name: "train".into(),
                gang: true,
            },
            tenant: "ml/vision".into(),
            drain_at,
        };
        assert_eq!(
            reclaimed(None).to_string(),
            "borrowed; gang train of ml/vision takes precedence"
        );
        assert!(
            reclaimed(Some(43_500))
                .to_string()
                .ends_with("; the drain starts at 12:05 UTC")
        );
    }
}
