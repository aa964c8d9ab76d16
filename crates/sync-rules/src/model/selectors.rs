//! Which Services select a pod.

use super::resource::Name;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Labels or selectors.
pub(super) type Labels = BTreeMap<String, String>;

/// Services by what they select.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    by_service: HashMap<Name, Labels>,
    /// Services by their namespace and the first label that they select.
    by_label: HashMap<(String, String, String), BTreeSet<Name>>,
}

impl Selectors {
    /// Sets what a Service selects; nothing once it is gone.
    pub(super) fn set(&mut self, service: &Name, selector: Labels) {
        if self.by_service.get(service) == Some(&selector) {
            return;
        }
        if let Some(before) = self.by_service.remove(service)
            && let Some(label) = index_label(service, &before)
            && let Some(services) = self.by_label.get_mut(&label)
        {
            services.remove(service);
            if services.is_empty() {
                self.by_label.remove(&label);
            }
        }
        if let Some(label) = index_label(service, &selector) {
            self.by_label.entry(label).or_default().insert(service.clone());
            self.by_service.insert(service.clone(), selector);
        }
    }

    /// The Services that select a pod with these labels.
    pub(super) fn matching(&self, namespace: &str, labels: &Labels) -> Vec<Name> {
        let by_label = labels
            .iter()
            .filter_map(|(key, value)| self.by_label.get(&(namespace.to_owned(), key.clone(), value.clone())));
        let selects = |service: &&Name| {
            let selector = self.by_service.get(*service);
            selector.is_some_and(|selector| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
        };
        by_label.flatten().filter(selects).cloned().collect()
    }
}

/// The label by which a Service is found; none if it selects nothing.
fn index_label(service: &Name, selector: &Labels) -> Option<(String, String, String)> {
    let (key, value) = selector.first_key_value()?;
    Some((service.namespace.to_string(), key.clone(), value.clone()))
}

/// Labels as one text. Neither names nor values of labels contain these characters.
pub(super) fn pack(labels: &Labels) -> Box<str> {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",").into()
}

/// The labels of a text.
pub(super) fn unpack(labels: &str) -> Labels {
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn services_are_found_by_the_labels_of_a_pod() {
        let (one, two) = ([Name::new("team", "one")], [Name::new("team", "two")]);
        let (other, nothing) = (Name::new("other", "s"), Name::new("team", "nothing"));
        let exact = labels(&[("app", "a"), ("tier", "web")]);
        let mut selectors = Selectors::default();
        selectors.set(&one[0], exact.clone());
        selectors.set(&two[0], labels(&[("tier", "web")]));
        selectors.set(&other, labels(&[("tier", "web")]));
        selectors.set(&nothing, Labels::new());
        let matching = |pairs: &[(&str, &str)]| {
            let mut found = selectors.matching("team", &labels(pairs));
            found.sort();
            found
        };
        assert_eq!(
            matching(&[("tier", "web"), ("app", "a"), ("x", "y")]),
            [&one[..], &two].concat()
        );
        assert_eq!(matching(&[("tier", "web"), ("app", "b")]), two);
        assert!(matching(&[("app", "a")]).is_empty());
        assert!(matching(&[]).is_empty());
        selectors.set(&two[0], labels(&[("tier", "db")]));
        assert_eq!(selectors.matching("team", &exact), one);
        for name in [&one[0], &two[0], &other] {
            selectors.set(name, Labels::new());
        }
        assert!(selectors.by_label.is_empty() && selectors.by_service.is_empty());
    }

    #[test]
    fn packed_labels_are_the_same_afterwards() {
        for pairs in [
            &[][..],
            &[("app", "a")],
            &[("example.com/app", "a.b-c_d"), ("empty", "")],
        ] {
            assert_eq!(unpack(&pack(&labels(pairs))), labels(pairs));
        }
    }
}
