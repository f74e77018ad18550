//! Tasks.

use semel_ojs::Code;

use crate::caller::Access;
use crate::tasks;

use super::endpoint::{Endpoint, delete, get, post};
use super::parameters::TASKS;

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    use Access::{Inspect, Produce};
    use Code::{Contended, InvalidRequest, QueueFull, TooManyHolders};
    vec![
        post("/v1/tasks", Produce, tasks::create)
            .named("createTask", "Creates a task from a template, unless one with the same identity exists.")
            .takes("TaskRequest")
            .answers(201, "TaskCreated")
            .answers(200, "TaskCreated")
            .answers(400, "TaskError")
            .answers(404, "TaskError")
            .answers(409, "TaskError")
            .answers(422, "TaskError")
            .refuses(&[InvalidRequest, Contended, TooManyHolders, QueueFull]),
        get("/v1/tasks", Inspect, tasks::list)
            .named("listTasks", "Tasks, newest first.")
            .query(TASKS)
            .answers(200, "Tasks")
            .answers(400, "TaskError")
            .refuses(&[InvalidRequest]),
        get("/v1/tasks/{id}", Inspect, tasks::show)
            .named("showTask", "One task and its steps.")
            .answers(200, "Task")
            .answers(404, "TaskError"),
        delete("/v1/tasks/{id}", Produce, tasks::cancel)
            .named("cancelTask", "Cancels a task and its steps.")
            .answers(200, "TaskCancelled")
            .answers(404, "TaskError")
            .answers(409, "TaskError")
            .refuses(&[Contended]),
    ]
}
