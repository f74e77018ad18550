//! Requests to Redis and its answers.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use crate::error::RedisError;
use crate::values;

/// Commands that are sent together. They arrive complete or, when the connection is lost, in part.
pub enum Request {
    /// One command.
    One(Cmd),
    /// A pipeline, and how many commands it has.
    Many(Pipeline, usize),
}

impl Request {
    /// A request of these commands, in their order.
    pub fn of(mut commands: Vec<Cmd>) -> Self {
        if commands.len() == 1
            && let Some(command) = commands.pop()
        {
            return Self::One(command);
        }
        let count = commands.len();
        let mut pipeline = Pipeline::with_capacity(count);
        for command in commands {
            pipeline.add_command(command);
        }
        Self::Many(pipeline, count)
    }
}

/// The outcome of each command of a request.
pub type Said = Vec<Result<Value, RedisError>>;

/// Sends a request, and waits for Redis's answer.
pub async fn sent(mut connection: MultiplexedConnection, request: &Request) -> Result<Said, RedisError> {
    match request {
        Request::One(command) => plain(connection.send_packed_command(command).await).map(|said| vec![said]),
        Request::Many(pipeline, count) => {
            let values = connection.send_packed_commands(pipeline, 0, *count).await.map_err(lost)?;
            Ok(values.into_iter().map(|value| value.extract_error().map_err(lost)).collect())
        }
    }
}

/// The texts that a pipeline of `count` commands is answered with. Where all fail for one reason, the error
/// says it once.
pub async fn each(
    connection: &mut MultiplexedConnection,
    asked: &Pipeline,
    count: usize,
) -> Result<Vec<String>, RedisError> {
    let said = connection.send_packed_commands(asked, 0, count).await.map_err(lost)?;
    said.into_iter().map(|said| values::text(said.extract_error().map_err(lost)?)).collect()
}

/// Separates an error that Redis answered (inner) from a lost connection (outer).
pub fn plain(said: redis::RedisResult<Value>) -> Result<Result<Value, RedisError>, RedisError> {
    match said.and_then(Value::extract_error).map_err(lost) {
        Err(error) if error.is_lost_connection() => Err(error),
        said => Ok(said),
    }
}

fn lost(error: redis::RedisError) -> RedisError {
    if error.is_timeout() { RedisError::Silent } else { RedisError::Redis(error) }
}
