//! One operator as a graph of its own, by the same table as archives: for tests, and for graphs made without an archive.

use super::{
    ImportError, UnsupportedTarget, aten,
    call::{Call, Fault, Out},
    schema::{self, GraphJson, NamedArgument, NodeJson},
    translate::{Binding, Scope, Translator},
};
use crate::{DType, Graph, OutputKind, TensorType, Value};

/// An argument of an operator, by what PyTorch's schema calls its kind.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Argument {
    None,
    /// The graph's input of that position.
    Input(usize),
    /// `Tensor[]`.
    Inputs(Vec<usize>),
    /// `Tensor?[]`.
    OptionalInputs(Vec<Option<usize>>),
    Bool(bool),
    Bools(Vec<bool>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Text(String),
    DType(DType),
}

fn input_name(position: usize) -> String {
    format!("input{position}")
}

impl Argument {
    fn into_json(self) -> schema::Argument {
        match self {
            Argument::None => schema::Argument::None,
            Argument::Input(at) => schema::Argument::Tensor(input_name(at)),
            Argument::Inputs(list) => schema::Argument::Tensors(list.into_iter().map(input_name).collect()),
            Argument::OptionalInputs(list) => {
                schema::Argument::OptionalTensors(list.into_iter().map(|at| at.map(input_name)).collect())
            }
            Argument::Bool(value) => schema::Argument::Bool(value),
            Argument::Bools(list) => schema::Argument::Bools(list),
            Argument::Int(value) => schema::Argument::Int(value),
            Argument::Ints(list) => schema::Argument::Ints(list),
            Argument::Float(value) => schema::Argument::Float(value),
            Argument::Floats(list) => schema::Argument::Floats(list),
            Argument::Text(text) => schema::Argument::Str(text),
            Argument::DType(dtype) => schema::Argument::DType(dtype.export_code()),
        }
    }
}

/// A graph whose inputs have these types and whose outputs are all results of the operator `target` (`aten.sum.dim_IntList`) on
/// `arguments`, which are named as in PyTorch's schema; those that equal their default may be left out.
pub fn call(target: &str, inputs: &[TensorType], arguments: &[(&str, Argument)]) -> Result<Graph, ImportError> {
    let named = |(name, argument): &(&str, Argument)| NamedArgument { name: (*name).into(), arg: argument.clone().into_json() };
    let node = NodeJson {
        target: target.into(),
        inputs: arguments.iter().map(named).collect(),
        outputs: Vec::new(),
        name: Some("result".into()),
    };
    let json = GraphJson { inputs: Vec::new(), outputs: Vec::new(), nodes: Vec::new(), tensor_values: Default::default() };
    let names: Vec<String> = (0..inputs.len()).map(input_name).collect();
    let mut translator = Translator::new(target);
    let mut scope = Scope::new(&json, "");
    for (name, ty) in names.iter().zip(inputs) {
        let value = translator.graph.add_input(name, ty.clone());
        let alias = translator.aliases.storage(value);
        scope.define(name, Binding::Tensor(alias), name)?;
    }
    let unsupported = |why: Option<String>| {
        ImportError::Unsupported(vec![UnsupportedTarget { target: target.into(), node: "result".into(), count: 1, why }])
    };
    let row = aten::lookup(target).ok_or_else(|| unsupported(None))?;
    let bad = |why: String| ImportError::Node { node: "result".into(), target: target.into(), why };
    let mut call = Call { translator: &mut translator, scope: &mut scope, node: &node, row, name: "result".into() };
    let results: Result<Vec<Value>, Fault> = call.build().and_then(|out| match out {
        Out::Value(value) => Ok(vec![value]),
        Out::Values(values) => Ok(values.into_vec()),
        Out::Alias(alias) => Ok(vec![call.read(alias)?]),
        Out::Aliases(aliases) => aliases.into_iter().map(|alias| call.read(alias)).collect(),
        Out::Int(_) | Out::Bindings(_) => Err(Fault::Unsupported("it gives a size, not a tensor".into())),
    });
    let results = results.map_err(|fault| match fault {
        Fault::Unsupported(why) => unsupported(Some(why)),
        Fault::Bad(why) => bad(why),
        Fault::Import(error) => *error,
    })?;
    let mut graph = translator.graph;
    for value in results {
        graph.add_output(value, OutputKind::User);
    }
    Ok(graph)
}
