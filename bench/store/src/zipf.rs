//! Keys as traffic has them.

/// Keys by how often they are drawn: the first half as often as the second, and so on.
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// So many keys.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        sums.iter_mut().for_each(|each| *each /= sum);
        Self(sums)
    }

    /// A table of keys to be gone through, so that drawing one costs nothing.
    #[must_use]
    pub fn table(&self, mut seed: u64, length: usize) -> Vec<u32> {
        let mut draw = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let share = (seed >> 11) as f64 / (1u64 << 53) as f64;
            u32::try_from(self.0.partition_point(|sum| *sum < share).min(self.0.len() - 1)).unwrap_or(0)
        };
        (0..length).map(|_| draw()).collect()
    }
}
