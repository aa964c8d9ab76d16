//! Which requests are served now, and how far a request has come.

/// What is served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stage {
    /// Only requests within a nominal quota at this depth of the tree, or deeper. Deeper quotas are served first: the nominal
    /// quota of a team is not for other teams of its organization, whatever the organization has.
    pub quota_depth: Option<usize>,
    /// Only requests of this priority.
    pub priority: i32,
}

/// How far one step of serving a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It got a node and needs more.
    Progress,
    /// All of it is placed, or has to wait.
    Finished,
    /// It is not served in this stage.
    NotNow,
}
