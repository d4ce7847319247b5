//! The archive's signature: what the graph's inputs and outputs are.

use super::{
    ImportError,
    alias::AliasId,
    number::of_dim,
    schema::{Argument, InputSpec, OutputSpec, Signature, SymIntArgument},
    translate::{Binding, Scope, Translator},
};
use crate::{DType, Dim, Operand, OutputKind, Scalar, TensorType, Value, ops::Full, weights::Weights};
use std::sync::Arc;

/// Constants up to this size are written into the graph, where passes can fold them.
const INLINE: usize = 1 << 16;

/// An input that nodes may write to, and what its new contents are called.
#[derive(Debug)]
pub struct Mutable {
    alias: AliasId,
    name: Arc<str>,
}

/// Paths of the weights that are no parameters: buffers, and constants too large to be written in the graph.
pub fn buffers(signature: &Signature) -> Vec<Arc<str>> {
    let path = |spec: &InputSpec| match spec {
        InputSpec::Buffer { buffer_name: path, .. } | InputSpec::TensorConstant { tensor_constant_name: path, .. } => {
            Some(path.as_str().into())
        }
        _ => None,
    };
    signature.input_specs.iter().filter_map(path).collect()
}

/// Adds the graph's inputs, weights and constants, in signature order.
pub fn inputs<'a>(
    translator: &mut Translator<'a>,
    scope: &mut Scope<'a>,
    signature: &'a Signature,
    weights: &Weights,
) -> Result<Vec<Mutable>, ImportError> {
    let mut mutable = Vec::new();
    for spec in &signature.input_specs {
        let (name, path) = match spec {
            InputSpec::UserInput { arg: Argument::Tensor(name) } => (name, None),
            InputSpec::UserInput { arg: Argument::SymInt(_) | Argument::SymBool(_) } => {
                return Err(ImportError::Signature("it takes a dynamic number as input, which only tensors can be here".into()));
            }
            // A number or None is baked into the graph.
            InputSpec::UserInput { .. } | InputSpec::ConstantInput {} => continue,
            InputSpec::Parameter { arg, parameter_name } => (&arg.name, Some(parameter_name)),
            InputSpec::Buffer { arg, buffer_name } => (&arg.name, Some(buffer_name)),
            InputSpec::TensorConstant { arg, tensor_constant_name } => {
                let ty = declared(translator, scope, &arg.name)?;
                let value = constant(translator, &arg.name, tensor_constant_name, ty, weights)?;
                let alias = translator.aliases.storage(value);
                scope.define(&arg.name, Binding::Tensor(alias), &arg.name)?;
                continue;
            }
            InputSpec::CustomObj { arg } | InputSpec::Token { arg } => {
                scope.define(&arg.name, Binding::Ignored, &arg.name)?;
                continue;
            }
        };
        let ty = declared(translator, scope, name)?;
        let value = match path {
            Some(path) => translator.graph.add_weight(name, path, ty),
            None => translator.graph.add_input(name, ty),
        };
        let alias = translator.aliases.storage(value);
        scope.define(name, Binding::Tensor(alias), name)?;
        mutable.push(Mutable { alias, name: path.unwrap_or(name).as_str().into() });
    }
    Ok(mutable)
}

fn declared<'a>(translator: &mut Translator<'a>, scope: &Scope<'a>, name: &str) -> Result<TensorType, ImportError> {
    let declared = translator.declared(scope, name)?;
    declared.ok_or_else(|| ImportError::Signature(format!("its input `{name}` has no type")))
}

/// A constant tensor: its value if it is at hand and small, else a weight.
fn constant(
    translator: &mut Translator<'_>,
    name: &str,
    path: &str,
    ty: TensorType,
    weights: &Weights,
) -> Result<Value, ImportError> {
    if !weights.contains(path) || ty.bytes().as_const().is_none_or(|bytes| bytes > INLINE as i64) {
        return Ok(translator.graph.add_weight(name, path, ty));
    }
    let tensor = weights.get(path)?;
    if tensor.ty() != ty {
        return Err(ImportError::Signature(format!("the constant `{path}` is {}, but the graph declares {ty}", tensor.ty())));
    }
    Ok(translator.graph.add_constant(name, tensor))
}

/// Adds the graph's outputs in signature order, then the new contents of inputs and weights that nodes wrote to.
pub fn outputs<'a>(
    translator: &mut Translator<'a>,
    scope: &Scope<'a>,
    signature: &'a Signature,
    mutable: Vec<Mutable>,
) -> Result<(), ImportError> {
    let mut listed: Vec<&str> = Vec::new();
    for spec in &signature.output_specs {
        let (name, kind) = match spec {
            OutputSpec::UserOutput { arg: Argument::Tensor(name) } => (name, OutputKind::User),
            OutputSpec::UserOutput { arg: Argument::SymInt(SymIntArgument::AsName(name)) } => (name, OutputKind::User),
            OutputSpec::UserOutput { .. } | OutputSpec::Token {} => continue,
            OutputSpec::LossOutput { arg } => (&arg.name, OutputKind::User),
            OutputSpec::GradientToParameter { arg, parameter_name: of }
            | OutputSpec::GradientToUserInput { arg, user_input_name: of } => {
                (&arg.name, OutputKind::Gradient(of.as_str().into()))
            }
            OutputSpec::BufferMutation { arg, buffer_name: of }
            | OutputSpec::ParameterMutation { arg, parameter_name: of }
            | OutputSpec::UserInputMutation { arg, user_input_name: of } => {
                listed.push(of);
                (&arg.name, OutputKind::Mutation(of.as_str().into()))
            }
        };
        let value = match scope.lookup(name) {
            Some(Binding::Tensor(alias)) => read(translator, *alias, name)?,
            Some(Binding::Int(size)) => number(translator, size, name)?,
            // What could not be translated is reported with all its like.
            Some(Binding::Unknown) => continue,
            Some(_) => return Err(ImportError::Signature(format!("it returns `{name}`, which is no tensor"))),
            None => return Err(ImportError::DanglingOutput { name: name.clone() }),
        };
        translator.graph.add_output(value, kind);
    }
    for Mutable { alias, name } in mutable {
        if translator.aliases.written(alias) && !listed.contains(&&*name) {
            let value = read(translator, alias, &name)?;
            translator.graph.add_output(value, OutputKind::Mutation(name));
        }
    }
    Ok(())
}

/// A size that the program returns, as a 0-d tensor.
fn number(translator: &mut Translator<'_>, size: &Dim, name: &str) -> Result<Value, ImportError> {
    let failed = |e: crate::GraphError| ImportError::Signature(format!("its output `{name}` cannot be counted: {e}"));
    match of_dim(&mut translator.graph, size, name).map_err(failed)? {
        Operand::Value(value) => Ok(value),
        _ => {
            let value = Scalar::Int(size.as_const().unwrap_or_default());
            let full = Full { shape: Default::default(), value, dtype: DType::I64 };
            Ok(translator.graph.add_call(name, full.into(), []).map_err(failed)?.into())
        }
    }
}

fn read(translator: &mut Translator<'_>, alias: AliasId, name: &str) -> Result<Value, ImportError> {
    let failed = |e: crate::GraphError| ImportError::Signature(format!("its output `{name}` cannot be read: {e}"));
    translator.aliases.read(&mut translator.graph, alias, name).map_err(failed)
}
