//! Randomness that comes from a seed and nothing else.

/// A stream of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate stream for actor number `whom`: what an actor draws must not depend on how many others
    /// there are.
    #[must_use]
    pub fn of(seed: u64, whom: u64) -> Self {
        let mut dice = Self(seed ^ whom.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.draw();
        dice
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True with a probability of `per_1024` in 1,024.
    pub fn chance(&mut self, per_1024: u64) -> bool {
        self.below(1024) < per_1024
    }

    /// A random element.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
