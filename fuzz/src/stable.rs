//! Runs the bodies of fuzz targets in an ordinary test: on every seed of the corpus, and on mutations of them. Seeded, so a failure
//! repeats. No part of the fuzz crate: the tests of the crates that have targets include this file.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Longest input that mutations grow to.
const BYTES_MAX: usize = 8_192;

struct Random(u64);

impl Random {
    /// A number below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let word = usize::try_from((word ^ (word >> 31)) >> 1).unwrap_or(0);
        word % most.max(1)
    }

    /// A stretch of some bytes.
    fn stretch(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(bytes.len() + 1);
        let length = self.below(bytes.len() - start + 1).min(1 + self.below(40));
        start..start + length
    }

    /// A seed with a few changes.
    fn mutated(&mut self, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.stretch(&bytes);
            match self.below(7) {
                0 => drop(bytes.drain(at)),
                1 => {
                    let copy = bytes[at.clone()].to_vec();
                    bytes.splice(at.end..at.end, copy);
                }
                2 => {
                    let other = &seeds[self.below(seeds.len())];
                    let piece = self.stretch(other);
                    bytes.splice(at, other[piece].iter().copied());
                }
                3 => {
                    let byte = u8::try_from(self.below(256)).unwrap_or(0);
                    bytes.splice(at.start..at.start, [byte]);
                }
                4 if at.start < bytes.len() => bytes[at.start] ^= 1 << self.below(8),
                5 => {
                    let end = at.end;
                    bytes[at].reverse();
                    bytes.truncate(bytes.len().min(end + BYTES_MAX / 2));
                }
                _ => drop(bytes.splice(at, words[self.below(words.len())].bytes())),
            }
            bytes.truncate(BYTES_MAX);
        }
        bytes
    }
}

/// Runs a target on its seeds and on so many mutations of them.
pub(crate) fn run(target: &str, words: &[&str], mutations: usize, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).expect("the corpus is part of the repository");
    let mut files: Vec<_> = files.map(|file| file.expect("it can be read").path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("it can be read")).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for (file, seed) in files.iter().zip(&seeds) {
        attempt(target, &file.display().to_string(), seed, body);
    }
    let mut random = Random(0x7011_6A7E);
    for number in 0..mutations {
        let input = random.mutated(&seeds, words);
        attempt(target, &format!("mutation {number}"), &input, body);
    }
}

/// A panic of the body tells its input, so that it can become a seed.
fn attempt(target: &str, origin: &str, input: &[u8], body: fn(&[u8])) {
    let outcome = catch_unwind(AssertUnwindSafe(|| body(input)));
    assert!(outcome.is_ok(), "{target} fails on {origin}: b\"{}\"", input.escape_ascii());
}
