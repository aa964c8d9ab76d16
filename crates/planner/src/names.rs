//! Numbers for what the demand of a pool names: resources, labels and selectors. Numbers are compared far more often than names.

use crate::load::Load;
use crate::view::{Kind, PoolNodeGroup, Request};
use crate::{Amounts, Demand, Node, Pool};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// The selector that every node matches.
pub(crate) const ANY: usize = 0;
static NO_SELECTOR: BTreeMap<String, String> = BTreeMap::new();

/// Numbers for the resources and labels that the demand of a pool names.
pub(crate) struct Names<'a> {
    /// The pool's own resource is the first, if it has one.
    resources: BTreeMap<&'a str, usize>,
    label_keys: Vec<&'a str>,
    label_values: HashMap<(usize, &'a str), u64>,
    selectors: BTreeMap<&'a BTreeMap<String, String>, usize>,
}

/// A request as it is read, before all resources have a number.
struct Read<'a> {
    group: usize,
    demand: &'a Demand,
    selector: usize,
    /// Its pods, among those of all requests.
    pods: Range<usize>,
}

/// Amounts that pods request, by the number of the resource. Most pods request the same as others.
#[derive(Default)]
struct KnownAmounts {
    numbers: BTreeMap<Vec<u64>, usize>,
}

impl<'a> Names<'a> {
    /// Numbers what the demand of node groups names, and lists the requests. The demand is read once: to look at each of thousands of requests again, and at the
    /// names in it, takes a large part of a plan's time.
    pub fn read(pool: &'a Pool, node_groups: &[PoolNodeGroup<'a>]) -> (Self, Vec<Request<'a>>) {
        let mut names = Self {
            resources: pool.gpu_resource_name.iter().map(|name| (name.as_str(), 0)).collect(),
            label_keys: Vec::new(),
            label_values: HashMap::new(),
            selectors: BTreeMap::from([(&NO_SELECTOR, ANY)]),
        };
        let number = node_groups.iter().map(|group| group.spec.demand.len()).sum();
        let (mut read, mut pods) = (Vec::with_capacity(number), Vec::with_capacity(number));
        let (mut known, mut amounts) = (KnownAmounts::default(), Vec::new());
        for (group, of) in node_groups.iter().enumerate() {
            for demand in &of.spec.demand {
                let first = pods.len();
                for alike in &demand.pod_sets {
                    names.read_amounts(&alike.requests, &mut amounts);
                    pods.push((alike.count, known.number(&amounts)));
                }
                read.push(Read {
                    group,
                    demand,
                    selector: names.number_selector(&demand.selector),
                    pods: first..pods.len(),
                });
            }
        }
        let amounts = known.list(names.resources.len() + 1);
        let requests = read.into_iter().map(|read| {
            let of_request = pods[read.pods].iter();
            Request {
                group: read.group,
                demand: read.demand,
                selector: read.selector,
                load: Load::new(
                    of_request
                        .map(|(count, at)| (*count, Rc::clone(&amounts[*at])))
                        .collect(),
                ),
            }
        });
        let requests = requests.collect();
        (names, requests)
    }

    /// Numbers of resources.
    pub fn into_resources(self) -> BTreeMap<&'a str, usize> {
        self.resources
    }

    /// Writes amounts by the numbers of their resources, up to the last one that they name.
    fn read_amounts(&mut self, amounts: &'a Amounts, into: &mut Vec<u64>) {
        into.clear();
        for (name, amount) in amounts {
            let next = self.resources.len();
            let number = *self.resources.entry(name).or_insert(next);
            if number >= into.len() {
                into.resize(number + 1, 0);
            }
            into[number] = *amount;
        }
    }

    /// The number of a selector, and numbers for its labels. Most requests have none.
    fn number_selector(&mut self, selector: &'a BTreeMap<String, String>) -> usize {
        if selector.is_empty() {
            return ANY;
        }
        if let Some(number) = self.selectors.get(selector) {
            return *number;
        }
        for (key, value) in selector {
            let known = self.label_keys.iter().position(|known| known == key);
            let at = known.unwrap_or_else(|| {
                self.label_keys.push(key);
                self.label_keys.len() - 1
            });
            let next = self.label_values.len() as u64 + 1;
            self.label_values.entry((at, value.as_str())).or_insert(next);
        }
        let number = self.selectors.len();
        self.selectors.insert(selector, number);
        number
    }

    /// Writes the capacity by resource number, then the values of the labels that selectors name.
    pub fn describe(&self, node: &Node, into: &mut Vec<u64>) {
        into.clear();
        into.resize(self.resources.len() + 1, 0);
        into[self.resources.len()] = 1;
        for (name, amount) in &node.capacity {
            if let Some(number) = self.resources.get(name.as_str()) {
                into[*number] = *amount;
            }
        }
        for (at, key) in self.label_keys.iter().enumerate() {
            let value = node.labels.get(*key);
            into.push(
                value
                    .and_then(|value| self.label_values.get(&(at, value.as_str())).copied())
                    .unwrap_or(0),
            );
        }
    }

    /// The kind of nodes that are described like this.
    pub fn kind(&self, pool: &Pool, described: &[u64]) -> Kind {
        let (capacity, labels) = described.split_at(self.resources.len() + 1);
        let mut matches = vec![false; self.selectors.len()];
        for (selector, number) in &self.selectors {
            matches[*number] = selector.iter().all(|(key, value)| {
                let at = self.label_keys.iter().position(|known| known == key);
                at.is_some_and(|at| self.label_values.get(&(at, value.as_str())) == Some(&labels[at]))
            });
        }
        Kind {
            gpus: pool.count_reported(capacity[0]),
            capacity: capacity.to_vec(),
            matches,
        }
    }
}

impl KnownAmounts {
    fn number(&mut self, amounts: &[u64]) -> usize {
        if let Some(number) = self.numbers.get(amounts) {
            return *number;
        }
        let number = self.numbers.len();
        self.numbers.insert(amounts.to_vec(), number);
        number
    }

    /// All amounts by number, each of them for as many resources.
    fn list(self, resources: usize) -> Vec<Rc<[u64]>> {
        let mut numbered: Vec<(usize, Vec<u64>)> = self.numbers.into_iter().map(|(each, at)| (at, each)).collect();
        numbered.sort_unstable_by_key(|(at, _)| *at);
        let padded = numbered.into_iter().map(|(_, mut each)| {
            each.resize(resources, 0);
            each.into()
        });
        padded.collect()
    }
}
