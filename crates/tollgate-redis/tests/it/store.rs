//! The store under test.
use tollgate::MemoryStore;
pub(crate) type Shared = MemoryStore;
pub(crate) fn connect(_url: &str) -> Shared {
    MemoryStore::new(1 << 20, tollgate::Clock::precise().now())
}
