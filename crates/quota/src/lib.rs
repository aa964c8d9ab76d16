//! The quota tree of Organizations and Projects: to which Project a tenant belongs ([`Projects`]), what each level has and may
//! borrow ([`Tree`], [`Usage`]), and which tenants get what they reserve ([`decide`]). And which pods of a user may start
//! ([`decide_users`]).
//!
//! Pure: a decision depends only on the objects that it is made from. docs/adr/0018 says which rules were chosen, and why.

#![warn(missing_docs)]

mod decision;
mod projects;
mod shortage;
mod tree;
mod usage;
mod users;
mod validate;

#[cfg(test)]
mod shrinking_tests;
#[cfg(test)]
mod tests;

pub use decision::{Amounts, Claim, Decision, Outcome, OverQuota, decide};
pub use projects::Projects;
pub use shortage::Shortage;
pub use tree::{Key, LevelKind, Tree};
pub use usage::{QuotaUse, Usage};
pub use users::{
    LimitExceeded, UserAmounts, UserGang, UserLimits, UserOutcome, UserPod, UserUse, decide_users, list_users,
};
pub use validate::{validate_organization, validate_project, validate_resources};
