//! Shares of a limit, in percent.

/// From here on the team is warned.
pub(super) const WARNING_PERCENT: u32 = 80;
/// Changes of fewer percent are not published: each would be a write on the host.
pub(super) const STEP_PERCENT: u32 = 5;

/// What is used of a limit.
pub(super) fn percent(used: u64, limit: u64) -> u32 {
    let percent = u128::from(used) * 100 / u128::from(limit.max(1));
    u32::try_from(percent).unwrap_or(u32::MAX)
}

/// The number of bits of a number: two numbers with the same one differ by less than a factor of two. A number that is a small part of a limit
/// is published when this changes, so that it is about right.
pub(super) fn magnitude(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Bytes in MiB, rounded up: what is there is never 0 MiB.
pub(super) fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
