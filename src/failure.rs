//! What ends a command early: one error with its exit code, its cause and what to do about it.

use eglu::ahead::AheadError;
use eglu_codegen::{LowerError, cuda::EmitError};
use eglu_ir::json::JsonError;
use eglu_passes::{AutodiffError, PassError};
use eglu_runtime::{Fault, RuntimeError, cuda::CudaError, inputs::InputError, package::PackageError};
use std::{error::Error, fmt, io::IsTerminal};

/// Whose fault a failure is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The model or the data is at fault, or results differ: 1.
    Data,
    /// The command was used wrongly: 2.
    Usage,
    /// The environment lacks something, such as a driver or a compiler: 3.
    Environment,
}

/// An error for the user: what happened and where, its cause, and what to do.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    what: String,
    cause: Option<Box<Cause>>,
    help: Option<String>,
}

impl Failure {
    fn new(exit: Exit, what: impl Into<String>) -> Failure {
        Failure { exit, what: what.into(), cause: None, help: None }
    }

    /// The model or the data is at fault.
    pub fn data(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Data, what)
    }

    /// The command was used wrongly.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, what)
    }

    /// The error behind it.
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        self.cause = Cause::of(&*cause.into());
        self
    }

    /// What the user can do.
    pub fn help(mut self, help: impl Into<String>) -> Failure {
        self.help = Some(help.into());
        self
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self.exit {
            Exit::Data => 1,
            Exit::Usage => 2,
            Exit::Environment => 3,
        }
    }

    /// The text for stderr: with colours and Unicode on a terminal, plain lines elsewhere.
    pub fn render(&self) -> String {
        if std::io::stderr().is_terminal() {
            let mut text = String::new();
            // The handler writes into a String, which cannot fail.
            let _ = miette::GraphicalReportHandler::new().render_report(&mut text, self);
            return text;
        }
        let mut text = format!("error: {self}\n");
        let mut cause = self.source();
        while let Some(error) = cause {
            text += &format!("  cause: {}\n", indent(&error.to_string()));
            cause = error.source();
        }
        if let Some(help) = &self.help {
            text += &format!("  help: {}\n", indent(help));
        }
        text
    }
}

fn indent(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

/// The text of an error, with that of the error behind it where it adds something: many errors quote theirs.
#[derive(Debug)]
struct Cause {
    text: String,
    behind: Option<Box<Cause>>,
}

impl Cause {
    fn of(error: &(dyn Error + 'static)) -> Option<Box<Cause>> {
        let mut texts: Vec<String> = Vec::new();
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string();
            if !texts.iter().any(|before| before.contains(&text)) {
                texts.push(text);
            }
            next = error.source();
        }
        texts.into_iter().rev().fold(None, |behind, text| Some(Box::new(Cause { text, behind })))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.behind.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl miette::Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
}

impl From<PassError> for Failure {
    fn from(error: PassError) -> Failure {
        match error {
            PassError::UnknownPass { .. } => Failure::usage(error.to_string()),
            PassError::Failed { source: eglu_passes::Failure::Autodiff(source), .. } if names_nothing(&source) => {
                Failure::usage("no such gradient").because(source)
            }
            _ => Failure::data("the model cannot be optimised").because(error),
        }
    }
}

/// True where `--grad` or `--wrt` name what is not there or has no gradient.
fn names_nothing(error: &AutodiffError) -> bool {
    use AutodiffError::{NotReal, UnknownOutput, UnknownSource};
    matches!(error, UnknownOutput { .. } | UnknownSource { .. } | NotReal { .. })
}

impl From<LowerError> for Failure {
    fn from(error: LowerError) -> Failure {
        Failure::data("the model has no plan").because(error)
    }
}

impl From<EmitError> for Failure {
    fn from(error: EmitError) -> Failure {
        Failure::data("the model has no CUDA code").because(error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        let exit = match error.fault() {
            Fault::Data => Exit::Data,
            Fault::Usage => Exit::Usage,
            Fault::Environment => Exit::Environment,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        let exit = if error.is_environment() { Exit::Environment } else { Exit::Data };
        Failure::new(exit, error.to_string())
    }
}

impl From<PackageError> for Failure {
    fn from(error: PackageError) -> Failure {
        RuntimeError::from(error).into()
    }
}

impl From<AheadError> for Failure {
    fn from(error: AheadError) -> Failure {
        match error {
            AheadError::Pass(error) => error.into(),
            AheadError::Lower(error) => error.into(),
            AheadError::Emit(error) => error.into(),
            AheadError::Cuda(error) => error.into(),
            AheadError::Choices(error) => error.into(),
        }
    }
}

impl From<JsonError> for Failure {
    fn from(error: JsonError) -> Failure {
        Failure::data("the graph has no JSON").because(error)
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        match error {
            InputError::Dim(_) | InputError::Tensor(_) => Failure::data("the inputs cannot be made")
                .because(error)
                .help("give smaller sizes with --tokens or --dim; a model of fixed sizes needs a machine with more memory"),
            error => Failure::usage(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open x: {0}")]
    struct Quoting(#[source] std::io::Error);

    #[test]
    fn what_an_error_quotes_is_not_said_twice() {
        let failure = Failure::data("no model").because(Quoting(std::io::Error::other("gone")));
        assert_eq!(failure.render(), "error: no model\n  cause: cannot open x: gone\n");
    }
}
