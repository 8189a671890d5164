//! A primary and its replica, watched by three sentinels.

use crate::server::{Plan, Program, Server};
use tollgate_testkit::until;

/// The service name.
pub(crate) const SERVICE: &str = "counters";

#[derive(Debug)]
pub(crate) struct SentinelSetup {
    pub(crate) servers: [Server; 2],
    pub(crate) sentinels: Vec<Server>,
}

impl SentinelSetup {
    /// Starts all five. Returns once the sentinels know each other and the replica.
    pub(crate) fn start() -> Self {
        Self::with(&Plan::new(Program::Redis))
    }

    /// Starts them with this plan for primary and replica.
    pub(crate) fn with(plan: &Plan) -> Self {
        let primary = plan.clone().start();
        let replica = plan.clone().line(format!("replicaof 127.0.0.1 {}", primary.port)).start();
        until("the replica is in sync", || (replica.info("master_link_status")? == "up").then_some(()));
        let sentinel = || {
            Plan::new(Program::Redis)
                .sentinel()
                .line(format!("sentinel monitor {SERVICE} 127.0.0.1 {} 2", primary.port))
                .line(format!("sentinel down-after-milliseconds {SERVICE} 1000"))
                .line(format!("sentinel failover-timeout {SERVICE} 5000"))
                .start()
        };
        let sentinels: Vec<Server> = (0..3).map(|_| sentinel()).collect();
        for sentinel in &sentinels {
            until("the sentinels agree", || {
                let quorum: String = sentinel.ask(&["SENTINEL", "CKQUORUM", SERVICE]).ok()?;
                let status = sentinel.info("master0")?;
                (quorum.starts_with("OK 3") && status.contains("slaves=1")).then_some(())
            });
        }
        Self { servers: [primary, replica], sentinels }
    }

    /// The URL for a store.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The port of the primary, as the sentinels see it.
    pub(crate) fn primary(&self) -> u16 {
        let query = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let (_, port): (String, u16) = self.sentinels[0].ask(&query).unwrap();
        port
    }
}
