//! Which pool a node belongs to.

use std::collections::BTreeMap;

/// The pool whose selector matches `labels`. If several match, `Err` names them all, and the node is not assigned. An empty
/// selector matches no node.
pub fn pool_of<'a>(
    pools: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
    labels: &BTreeMap<String, String>,
) -> Result<Option<&'a str>, Vec<&'a str>> {
    let matching: Vec<&str> = pools
        .into_iter()
        .filter(|(_, selector)| !selector.is_empty() && selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
        .map(|(name, _)| name)
        .collect();
    match matching.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(matching),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn a_node_belongs_to_the_one_pool_that_selects_it() {
        let (h100, gpu, all) = (labels(&[("product", "h100")]), labels(&[("gpu", "yes")]), labels(&[]));
        let pools = [("h100", &h100), ("gpu", &gpu), ("all", &all)];
        assert_eq!(pool_of(pools, &labels(&[("product", "h100")])), Ok(Some("h100")));
        assert_eq!(pool_of(pools, &labels(&[("product", "a100")])), Ok(None));
        assert_eq!(
            pool_of(pools, &labels(&[("product", "h100"), ("gpu", "yes")])),
            Err(vec!["h100", "gpu"])
        );
    }
}
