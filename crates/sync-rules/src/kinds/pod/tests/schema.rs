//! The tables of a pod against the API servers' own schemas, see [`schemas`].

use crate::kinds::{pod::STRUCTURES, schemas};
use std::collections::BTreeSet;

#[test]
fn every_field_of_every_version_has_a_rule() {
    assert_eq!(schemas::find_gaps(&schemas::of_pods(), STRUCTURES), BTreeSet::new());
}

#[test]
fn no_rule_is_about_a_field_that_does_not_exist() {
    assert_eq!(
        schemas::find_leftovers(&schemas::of_pods(), STRUCTURES),
        BTreeSet::new()
    );
}
