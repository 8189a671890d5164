//! Tollgate in the request path of a Rust service. The modules stand in the order of a request: who sent it and what it asks for
//! (`attributes`), and what is done with it. It knows `http` types and tower's traits, and neither Redis nor the program `tollgate`.

pub mod attributes;
