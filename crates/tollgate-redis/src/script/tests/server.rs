//! A real redis-server on a free port, stopped with its owner.

use std::time::Duration;

use redis::Value;
use tollgate_testkit::redis::Redis;

use crate::script::{EncodedRequest, SOURCE};

/// A running server with a connection.
pub(crate) struct Server {
    pub(crate) connection: redis::aio::MultiplexedConnection,
    script: redis::Script,
    _redis: Redis,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let redis = Redis::start(&[]);
        let client = redis::Client::open(redis.url()).unwrap();
        let timeout = Some(Duration::from_secs(30));
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(timeout);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        Self { connection, script: redis::Script::new(SOURCE), _redis: redis }
    }

    /// Sends several requests in one call.
    pub(crate) async fn call(&self, asked: &[EncodedRequest], time: &str) -> redis::RedisResult<Value> {
        let time = time.parse().ok().map(tollgate::Timestamp::from_unix_micros);
        crate::script::command("EVAL", SOURCE, asked.iter(), time)
            .query_async(&mut self.connection.clone())
            .await
    }

    /// Sends any keys and bodies.
    pub(crate) async fn raw<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        time: &str,
        bodies: &[&[u8]],
    ) -> redis::RedisResult<Value> {
        let mut invocation = self.script.prepare_invoke();
        keys.for_each(|key| {
            invocation.key(key);
        });
        invocation.arg(time);
        bodies.iter().for_each(|body| {
            invocation.arg(*body);
        });
        invocation.invoke_async(&mut self.connection.clone()).await
    }

    /// Runs any command.
    pub(crate) async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// Asserts that every key expires.
    pub(crate) async fn all_keys_expire(&self) {
        let keys: Vec<String> = self.command(&["KEYS", "*"]).await;
        assert!(!keys.is_empty());
        for chunk in keys.chunks(1_000) {
            let mut pipeline = redis::pipe();
            chunk.iter().for_each(|key| {
                pipeline.cmd("PTTL").arg(key);
            });
            let lives: Vec<i64> = pipeline.query_async(&mut self.connection.clone()).await.unwrap();
            assert!(!lives.contains(&-1), "a key without an expiry");
        }
    }
}
