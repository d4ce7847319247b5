//! Text to graph.

use super::{
    attrs, constant,
    cursor::{Cursor, ParseError},
    dims,
};
use crate::{
    Graph, NodeId, Op, Operand, OutputKind, SymbolRange, TensorType, Value,
    ops::{Attr, OpCode},
    verify::verify,
};
use std::collections::HashMap;

/// Reads what [`print`](super::print) wrote. Every recorded type is checked against inference, and the graph by the verifier.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut parser = Parser { cursor: Cursor::new(text), graph: Graph::default(), nodes: HashMap::new() };
    parser.graph()?;
    let end = parser.cursor.place();
    verify(&parser.graph).map_err(|e| parser.cursor.error_at(end, e.to_string()))?;
    Ok(parser.graph)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    graph: Graph,
    nodes: HashMap<String, NodeId>,
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<(), ParseError> {
        if !self.cursor.eat_word("graph") {
            return Err(self.cursor.expected("`graph`"));
        }
        self.graph.name = self.cursor.string("the graph's name")?;
        while !self.cursor.at_end() {
            if self.cursor.eat_word("symbol") {
                self.symbol()?;
            } else if self.cursor.eat_word("output") {
                self.output()?;
            } else if self.cursor.eat("%") {
                self.node()?;
            } else {
                return Err(self.cursor.expected("`%`, `symbol` or `output`"));
            }
        }
        Ok(())
    }

    /// `s0: 2..=1024` or `s0: 0..`
    fn symbol(&mut self) -> Result<(), ParseError> {
        let place = self.cursor.place();
        let name = self.cursor.word("a symbol")?;
        self.cursor.expect(":")?;
        let min = self.cursor.integer("the least value")?;
        let max = match self.cursor.eat("..=") {
            true => Some(self.cursor.integer("the greatest value")?),
            false => self.cursor.expect("..").map(|()| None)?,
        };
        match self.graph.symbols.insert(name.into(), SymbolRange { min, max }) {
            None => Ok(()),
            Some(_) => Err(self.cursor.error_at(place, format!("the symbol `{name}` is declared twice"))),
        }
    }

    /// `%y kind "of"`
    fn output(&mut self) -> Result<(), ParseError> {
        self.cursor.expect("%")?;
        let value = self.value()?;
        let kind = if self.cursor.eat_word("gradient") {
            OutputKind::Gradient(self.cursor.string("what the gradient is of")?.into())
        } else if self.cursor.eat_word("mutation") {
            OutputKind::Mutation(self.cursor.string("what is mutated")?.into())
        } else {
            OutputKind::User
        };
        self.graph.add_output(value, kind);
        Ok(())
    }

    /// `y` or `y#1`, after the `%`.
    fn value(&mut self) -> Result<Value, ParseError> {
        let place = self.cursor.place();
        let name = self.cursor.name("a node's name")?;
        let Some(&node) = self.nodes.get(&name) else {
            return Err(self.cursor.error_at(place, format!("expected a node defined before, but there is no `%{name}` yet")));
        };
        let index = if self.cursor.eat("#") { self.cursor.integer("an output's number")? } else { 0 };
        let count = self.graph.node(node).outputs.len();
        if (index as usize) < count {
            return Ok(Value { node, index });
        }
        Err(self.cursor.error_at(place, format!("expected an output of `%{name}` below {count}, found {index}")))
    }

    /// `y: f32[2] = op(…) {…} from […]`, after the `%`.
    fn node(&mut self) -> Result<(), ParseError> {
        let place = self.cursor.place();
        let name = self.cursor.name("a node's name")?;
        if self.nodes.contains_key(&name) {
            return Err(self.cursor.error_at(place, format!("the node `%{name}` is defined twice")));
        }
        self.cursor.expect(":")?;
        let types_place = self.cursor.place();
        let types = self.types()?;
        self.cursor.expect("=")?;
        let id = self.definition(&name, &types)?;
        let inferred = &self.graph.node(id).outputs;
        if inferred.as_slice() != types {
            let listed = inferred.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(self
                .cursor
                .error_at(types_place, format!("expected `{listed}`, which the operands of `%{name}` make it")));
        }
        if self.cursor.eat_word("from") {
            let origins = self.cursor.list("[", "]", |cursor| cursor.string("a node's name"))?;
            self.graph.set_origins(id, origins.into_iter().map(Into::into));
        }
        self.nodes.insert(name, id);
        Ok(())
    }

    fn types(&mut self) -> Result<Vec<TensorType>, ParseError> {
        if self.cursor.eat("(") {
            let mut types = Vec::new();
            while !self.cursor.eat(")") {
                if !types.is_empty() {
                    self.cursor.expect(",")?;
                }
                types.push(self.ty()?);
            }
            return Ok(types);
        }
        Ok(vec![self.ty()?])
    }

    fn ty(&mut self) -> Result<TensorType, ParseError> {
        let dtype = attrs::dtype(&mut self.cursor)?;
        Ok(TensorType::new(dtype, self.cursor.list("[", "]", dims::dim)?))
    }

    fn definition(&mut self, name: &str, types: &[TensorType]) -> Result<NodeId, ParseError> {
        let place = self.cursor.place();
        let word = self.cursor.word("`input`, `weight`, `constant` or an op")?;
        if !matches!(word, "input" | "weight" | "constant") {
            return self.call(name, word, place);
        }
        let [ty] = types else {
            return Err(self.cursor.error_at(place, format!("expected one type, but `%{name}` records {}", types.len())));
        };
        Ok(match word {
            "input" => self.graph.add_input(name, ty.clone()).node,
            "weight" => {
                let path = self.cursor.string("the weight's name")?;
                self.graph.add_weight(name, &path, ty.clone()).node
            }
            _ => self.graph.add_constant(name, constant::parse(&mut self.cursor, ty)?).node,
        })
    }

    fn call(&mut self, name: &str, word: &str, place: usize) -> Result<NodeId, ParseError> {
        let code = OpCode::from_name(word).map_err(|e| self.cursor.error_at(place, e.to_string()))?;
        self.cursor.expect("(")?;
        let mut operands = Vec::new();
        while !self.cursor.eat(")") {
            if !operands.is_empty() {
                self.cursor.expect(",")?;
            }
            operands.push(self.operand()?);
        }
        let op = self.op(code, place)?;
        self.graph.add_call(name, op, operands).map_err(|e| self.cursor.error_at(place, e.to_string()))
    }

    fn operand(&mut self) -> Result<Operand, ParseError> {
        if self.cursor.eat("%") {
            return self.value().map(Operand::Value);
        }
        if self.cursor.eat_word("none") {
            return Ok(Operand::None);
        }
        attrs::scalar(&mut self.cursor, "`%`, a number or `none`").map(Operand::Scalar)
    }

    /// `{name=value, …}`, in any order.
    fn op(&mut self, code: OpCode, place: usize) -> Result<Op, ParseError> {
        let (fields, kinds) = (code.fields(), code.kinds());
        let mut given: Vec<Option<Attr>> = vec![None; fields.len()];
        if !fields.is_empty() {
            self.cursor.list("{", "}", |cursor| {
                let field_place = cursor.place();
                let field = cursor.word("an attribute's name")?;
                let wanted =
                    || format!("expected one of the attributes {} of `{}`, found `{field}`", fields.join(", "), code.name());
                let at = fields.iter().position(|name| *name == field).ok_or_else(|| cursor.error_at(field_place, wanted()))?;
                cursor.expect("=")?;
                match given[at].replace(attrs::parse(cursor, kinds[at])?) {
                    None => Ok(()),
                    Some(_) => Err(cursor.error_at(field_place, format!("the attribute `{field}` is given twice"))),
                }
            })?;
        }
        if let Some(missing) = given.iter().position(Option::is_none) {
            let message = format!("`{}` needs the attribute `{}`", code.name(), fields[missing]);
            return Err(self.cursor.error_at(place, message));
        }
        let attrs: Vec<Attr> = given.into_iter().flatten().collect();
        code.build(&attrs).map_err(|e| self.cursor.error_at(place, e.to_string()))
    }
}
