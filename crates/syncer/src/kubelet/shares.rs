//! How many logs, commands and forwarded ports may be open for one pod, and for the pods of one namespace.
//!
//! A log that is followed and silent stays open for as long as somebody wants, and `view` in one namespace is enough for it. So nobody may take all of the
//! [connections](super::CONNECTIONS). How many others there may be depends on how many are left:
//!
//! | open at a time | for each that is left | if there are no others |
//! |---|---|---|
//! | logs | three | three quarters of all |
//! | logs of the pods of a namespace | one | half |
//! | logs of a pod | a third | a quarter |
//!
//! The same holds for commands, attached terminals and forwarded ports, which are counted apart: they need other rights. So logs leave a quarter of all to
//! these, and the other way round.

use super::{
    CONNECTIONS,
    request::{Action, Denial},
};
use axum::http::StatusCode;
use berth_runtime::locks::lock;
use berth_sync_rules::model::resource::Name;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// What is open.
#[derive(Debug, Default)]
pub(super) struct Shares(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    count: usize,
    by_group: HashMap<Group, usize>,
}

/// Whether it is a log, and whose.
type Group = (bool, Whose);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    All,
    Namespace(Arc<str>),
    Pod(Name),
}

impl Whose {
    /// How many may be open, as a multiple of how many are left: `(1, 3)` is one for each three.
    fn ratio(&self) -> (usize, usize) {
        match self {
            Self::All => (3, 1),
            Self::Namespace(_) => (1, 1),
            Self::Pod(_) => (1, 3),
        }
    }
}

/// One that is open. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    open: Arc<Mutex<Open>>,
    groups: [Group; 3],
}

impl Shares {
    /// Counts one for a pod.
    ///
    /// # Errors
    /// There are too many, as the message says to the team.
    pub(super) fn take(&self, pod: &Name, action: Action) -> Result<Share, Denial> {
        let is_log = !action.is_stream();
        let namespace = Arc::clone(&pod.namespace);
        let groups = [Whose::All, Whose::Namespace(namespace), Whose::Pod(pod.clone())].map(|whose| (is_log, whose));
        let mut open = lock(&self.0);
        let left = CONNECTIONS.saturating_sub(open.count);
        for group in &groups {
            let own = open.by_group.get(group).copied().unwrap_or_default();
            let (of_own, of_left) = group.1.ratio();
            if own * of_left >= left * of_own {
                return Err(denial(group, own));
            }
        }
        open.count += 1;
        for group in &groups {
            *open.by_group.entry(group.clone()).or_default() += 1;
        }
        drop(open);
        Ok(Share {
            open: Arc::clone(&self.0),
            groups,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.count -= 1;
        for group in &self.groups {
            if let Some(count) = open.by_group.get_mut(group) {
                *count -= 1;
                if *count == 0 {
                    open.by_group.remove(group);
                }
            }
        }
    }
}

/// What there are too many of.
pub(super) fn describe(is_log: bool) -> &'static str {
    if is_log { "logs" } else { "commands and forwarded ports" }
}

fn denial((is_log, whose): &Group, count: usize) -> Denial {
    let what = describe(*is_log);
    let whose = match whose {
        Whose::All => "your cluster".to_owned(),
        Whose::Namespace(namespace) => format!("the pods of namespace {namespace}"),
        Whose::Pod(pod) => format!("pod {pod}"),
    };
    let message =
        format!("{count} {what} of {whose} are open, and the rest of the connections is for others; close some");
    Denial::new(StatusCode::TOO_MANY_REQUESTS, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> Name {
        Name::new(namespace, name)
    }

    /// Takes as many as there may be for a pod.
    fn fill(shares: &Shares, pod: &Name, action: Action) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(pod, action).ok()).collect()
    }

    /// The same for further pods of a namespace, until there is none for a new one.
    fn fill_namespace(shares: &Shares, namespace: &str, action: Action) -> Vec<Share> {
        let pods = (0..).map(|number: u32| pod(namespace, &number.to_string()));
        let filled = pods.map(|pod| fill(shares, &pod, action));
        filled.take_while(|taken| !taken.is_empty()).flatten().collect()
    }

    #[test]
    fn a_pod_has_a_quarter_and_a_namespace_half() {
        let shares = Shares::default();
        let of_pod = fill(&shares, &pod("team", "silent"), Action::Log);
        assert_eq!(of_pod.len(), 96);
        let denied = shares.take(&pod("team", "silent"), Action::Log).unwrap_err();
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(
            denied.message.contains("96 logs of pod team/silent are open"),
            "{}",
            denied.message
        );
        let others = fill_namespace(&shares, "team", Action::Log);
        assert_eq!(of_pod.len() + others.len(), 192);
        let denied = shares.take(&pod("team", "another"), Action::Log).unwrap_err();
        assert!(
            denied
                .message
                .contains("192 logs of the pods of namespace team are open"),
            "{}",
            denied.message
        );
        assert!(shares.take(&pod("other", "a"), Action::Log).is_ok());
        drop((of_pod, others));
        let open = lock(&shares.0);
        assert!(open.count == 0 && open.by_group.is_empty());
    }

    #[test]
    fn logs_leave_room_for_commands_of_the_same_pod() {
        let shares = Shares::default();
        let _logs = fill_namespace(&shares, "team", Action::Log);
        for action in [Action::Exec, Action::Attach, Action::PortForward] {
            assert!(shares.take(&pod("team", "0"), action).is_ok(), "{action:?}");
        }
    }

    #[test]
    fn logs_of_all_namespaces_leave_a_quarter_to_commands() {
        let shares = Shares::default();
        let fill = |action| {
            let namespaces = (0..100).map(|number: u32| fill_namespace(&shares, &format!("team-{number}"), action));
            namespaces.flatten().collect::<Vec<_>>()
        };
        let logs = fill(Action::Log);
        let commands = fill(Action::Exec);
        // Three quarters of all, then three quarters of what they leave.
        assert_eq!((logs.len(), commands.len()), (288, 72));
        drop(logs);
        assert_eq!(fill(Action::PortForward).len(), 288 - 72);
    }
}
