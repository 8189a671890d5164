//! The conformance suite of stores on the script, compared with memory.

use std::sync::Arc;

use tollgate::conformance;

use super::server::Server;
use super::twin::Twin;

#[tokio::test]
async fn script_passes_the_conformance_suite() {
    let server = Arc::new(Server::start().await);
    conformance::all(&|origin| Twin::new(&server, origin)).await;
}
