//! Random numbers that a seed decides, so that a failed run can be repeated.

/// A generator (xorshift).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// The seed is that of the variable `BERTH_RANDOM_SEED`, or the id of this process, and is printed.
    pub fn from_environment() -> Self {
        Self::from_environment_or(std::process::id().into())
    }

    /// The seed is that of the variable `BERTH_RANDOM_SEED`, or this one, and is printed.
    pub fn from_environment_or(seed: u64) -> Self {
        let text = std::env::var("BERTH_RANDOM_SEED").ok();
        let set = text.and_then(|text| text.parse().ok());
        let seed: u64 = set.unwrap_or(seed);
        eprintln!("BERTH_RANDOM_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below a limit, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// An index into so many elements, of which there is at least one.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}
