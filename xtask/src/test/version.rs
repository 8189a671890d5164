//! Versions of programs, compared number by number.

/// Whether a version is the wanted one or newer. What follows the numbers, such as `-nightly`, does not count.
pub(crate) fn is_at_least(version: &str, wanted: &str) -> bool {
    let (version, wanted) = (numbers(version), numbers(wanted));
    let length = version.len().max(wanted.len());
    let padded = |mut numbers: Vec<u64>| {
        numbers.resize(length, 0);
        numbers
    };
    padded(version) >= padded(wanted)
}

fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split(['-', '+', ' ']).next().unwrap_or_default();
    plain.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_numbers() {
        for (version, wanted) in
            [("1.95.0", "1.95"), ("1.100.0", "1.95"), ("2.0", "1.95.3"), ("1.97.0-nightly", "1.95")]
        {
            assert!(is_at_least(version, wanted), "{version} {wanted}");
        }
        for (version, wanted) in [("1.9.0", "1.95"), ("1.94.9", "1.95"), ("", "1.95"), ("0.9.99", "0.9.143")]
        {
            assert!(!is_at_least(version, wanted), "{version} {wanted}");
        }
    }
}
