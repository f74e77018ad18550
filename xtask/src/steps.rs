//! Running steps one after the other, with cargo's own output in sight, until one fails.

use std::fmt::Write as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// How often to check whether a step with a time limit is done.
const POLL: Duration = Duration::from_millis(20);

/// One thing to do.
pub struct Step {
    /// A name of a word or two.
    pub name: &'static str,
    /// What is run, as a user would type it.
    pub shown: String,
    /// What to do when it fails.
    pub remedy: &'static str,
    /// How it is run.
    pub action: Action,
}

/// How a step is run.
pub enum Action {
    /// A process; it must end with exit code 0.
    Run(Command),
    /// The same, with a time limit.
    RunWithin(Command, Duration),
    /// A function of this tool.
    Call(Box<dyn FnOnce() -> Result<(), String>>),
}

/// Runs `steps` in order, then says how long each took.
///
/// # Errors
/// The first step that fails, with what to do about it; the steps after it are not run.
pub fn run(steps: Vec<Step>) -> Result<(), String> {
    let total = steps.len();
    let begun = Instant::now();
    let mut times = Vec::with_capacity(total);
    for (number, step) in (1..).zip(steps) {
        println!("\n=== {number}/{total} {}: {}", step.name, step.shown);
        let started = Instant::now();
        let outcome = perform(step.action);
        let took = started.elapsed();
        if let Err(reason) = outcome {
            return Err(format!(
                "\n=== {number}/{total} {} failed after {}: {reason}\n    run:  {}\n    then: {}",
                step.name,
                seconds(took),
                step.shown,
                step.remedy
            ));
        }
        println!("=== {} ok in {}", step.name, seconds(took));
        times.push((step.name, took));
    }
    println!("\n{}", summary(&times, begun.elapsed()));
    Ok(())
}

fn perform(action: Action) -> Result<(), String> {
    match action {
        Action::Run(mut command) => judge(command.status().map_err(|error| cannot_start(&command, &error))?),
        Action::RunWithin(command, limit) => perform_within(command, limit),
        Action::Call(function) => function(),
    }
}

fn perform_within(mut command: Command, limit: Duration) -> Result<(), String> {
    let mut child = command.spawn().map_err(|error| cannot_start(&command, &error))?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return judge(status);
        }
        if started.elapsed() >= limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("not finished within {}", seconds(limit)));
        }
        std::thread::sleep(POLL);
    }
}

fn judge(status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", command.get_program().display())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn summary(times: &[(&str, Duration)], total: Duration) -> String {
    let width = times.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, took) in times {
        let _ = writeln!(text, "  {name:<width$}  {:>8}", seconds(*took));
    }
    let _ = write!(text, "all {} steps passed in {}", times.len(), seconds(total));
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::{Action, Step, run, summary};

    fn step(name: &'static str, action: Action) -> Step {
        Step { name, shown: format!("do {name}"), remedy: "mend it", action }
    }

    fn call(outcome: Result<(), String>) -> Action {
        Action::Call(Box::new(move || outcome))
    }

    fn cargo(args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO"));
        command.args(args);
        command
    }

    #[test]
    fn the_first_failing_step_ends_the_run() {
        let ran = Rc::new(Cell::new(false));
        let seen = ran.clone();
        let after = Action::Call(Box::new(move || {
            seen.set(true);
            Ok(())
        }));
        let failure = run(vec![
            step("one", call(Ok(()))),
            step("two", call(Err("it broke".to_owned()))),
            step("three", after),
        ])
        .unwrap_err();
        assert!(failure.contains("2/3 two failed"), "{failure}");
        assert!(failure.contains("it broke") && failure.contains("do two") && failure.contains("mend it"));
        assert!(!ran.get());
    }

    #[test]
    fn a_process_that_fails_fails_its_step() {
        run(vec![step("version", Action::Run(cargo(&["--version"])))]).unwrap();
        run(vec![step("nothing", Action::Run(cargo(&["no-such-command-of-cargo"])))]).unwrap_err();
    }

    #[test]
    fn a_process_that_takes_too_long_fails_its_step() {
        // The compiler waits for source text that never comes.
        let mut waits = std::process::Command::new("rustc");
        waits.arg("-").stdin(std::process::Stdio::piped());
        let failure =
            run(vec![step("slow", Action::RunWithin(waits, Duration::from_millis(10)))]).unwrap_err();
        assert!(failure.contains("not finished within"), "{failure}");
        run(vec![step("quick", Action::RunWithin(cargo(&["--version"]), Duration::from_secs(60)))]).unwrap();
    }

    #[test]
    fn the_summary_names_each_step_and_its_time() {
        let text = summary(
            &[("fmt", Duration::from_millis(1_250)), ("tests", Duration::from_secs(61))],
            Duration::ZERO,
        );
        assert_eq!(text, "  fmt       1.2 s\n  tests    61.0 s\nall 2 steps passed in 0.0 s");
    }
}
