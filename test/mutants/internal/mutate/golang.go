package mutate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
)

// golang generates the mutants of a Go file.
func (g *generator) golang() error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, g.file, g.src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	w := &walker{generator: g, base: int(file.FileStart)}
	ast.Inspect(file, w.visit)
	return nil
}

// A walker visits a syntax tree and knows the way from the root.
type walker struct {
	*generator
	base int
	path []ast.Node // the parents of the current node, the outermost first
}

func (w *walker) visit(n ast.Node) bool {
	if n == nil {
		w.path = w.path[:len(w.path)-1]
		return true
	}
	if e, ok := n.(ast.Expr); ok && w.isCapacity(e) {
		return false
	}
	w.fn = funcName(w.path)
	w.mutate(n)
	w.path = append(w.path, n)
	return true
}

func (w *walker) mutate(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		w.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			w.condition(n.Cond)
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			w.cases(n)
		}
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.UnaryExpr:
		w.unary(n)
	case *ast.BasicLit:
		w.constant(n)
	case *ast.Ident:
		w.boolean(n)
	case *ast.SelectorExpr:
		w.unit(n)
	default:
		w.statement(n)
	}
}

func (w *walker) statement(n ast.Node) {
	if clause, ok := w.parent().(*ast.CommClause); ok && clause.Comm == n {
		return
	}
	switch n := n.(type) {
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
		w.replace("call removed", n, "")
	case *ast.AssignStmt:
		w.assignment(n)
	case *ast.IncDecStmt:
		w.token("arithmetic", n.TokPos, n.Tok, map[token.Token]token.Token{token.INC: token.DEC, token.DEC: token.INC}[n.Tok])
	case *ast.ReturnStmt:
		w.result(n)
	case *ast.BranchStmt:
		if n.Tok == token.BREAK || n.Tok == token.CONTINUE {
			w.replace(n.Tok.String()+" removed", n, "")
		}
	}
}

// condition makes a decision the other way round, and always the same. What it calls is
// still called.
func (w *walker) condition(e ast.Expr) {
	w.negate(e)
	w.replace("condition", e, "("+w.source(e)+") || true")
	w.replace("condition", e, "("+w.source(e)+") && false")
}

// negate leaves comparisons and negations to those that change their operators.
func (w *walker) negate(e ast.Expr) {
	switch inner := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		if inner.Op == token.NOT {
			return
		}
	case *ast.BinaryExpr:
		if opposite[inner.Op] != 0 {
			return
		}
	}
	w.replace("condition", e, "!("+w.source(e)+")")
}

func (w *walker) cases(n *ast.SwitchStmt) {
	for _, s := range n.Body.List {
		for _, e := range s.(*ast.CaseClause).List {
			w.condition(e)
		}
	}
}

var (
	opposite = map[token.Token]token.Token{
		token.EQL: token.NEQ, token.NEQ: token.EQL,
		token.LSS: token.GEQ, token.GEQ: token.LSS, token.GTR: token.LEQ, token.LEQ: token.GTR,
	}
	boundary = map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	}
	arithmetic = map[token.Token]token.Token{
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
		token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL, token.AND_NOT: token.AND,
	}
	arithmeticAssign = map[token.Token]token.Token{
		token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
		token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN, token.REM_ASSIGN: token.MUL_ASSIGN,
		token.AND_ASSIGN: token.OR_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN,
	}
)

func (w *walker) binary(n *ast.BinaryExpr) {
	w.token("comparison", n.OpPos, n.Op, opposite[n.Op])
	w.token("boundary", n.OpPos, n.Op, boundary[n.Op])
	w.token("arithmetic", n.OpPos, n.Op, arithmetic[n.Op])
	neutral := map[token.Token]string{token.LAND: " || true)", token.LOR: " && false)"}[n.Op]
	if neutral == "" {
		return
	}
	for _, e := range []ast.Expr{n.X, n.Y} {
		w.negate(e)
		w.replace("operand ignored", e, "(("+w.source(e)+")"+neutral)
	}
}

func (w *walker) unary(n *ast.UnaryExpr) {
	if n.Op == token.NOT {
		w.replace("negation removed", n, w.source(n.X))
	}
	if n.Op == token.SUB {
		w.replace("arithmetic", n, w.source(n.X))
	}
}

func (w *walker) constant(n *ast.BasicLit) {
	if n.Kind != token.INT && n.Kind != token.FLOAT {
		return
	}
	others := otherNumbers(n.Value)
	index, ok := w.parent().(*ast.IndexExpr)
	if ok && index.Index == ast.Expr(n) {
		others = others[:1] // one wrong index is like another
	}
	for _, other := range others {
		w.replace("constant", n, other)
	}
}

// isCapacity knows the capacities of slices and maps, which change no behaviour.
func (w *walker) isCapacity(n ast.Expr) bool {
	call, ok := w.parent().(*ast.CallExpr)
	if !ok {
		return false
	}
	name, ok := call.Fun.(*ast.Ident)
	if !ok || name.Name != "make" {
		return false
	}
	_, isMap := call.Args[0].(*ast.MapType)
	i := slices.Index(call.Args, n)
	return i == 2 || i == 1 && isMap
}

func (w *walker) boolean(n *ast.Ident) {
	other := map[string]string{"true": "false", "false": "true"}[n.Name]
	if other != "" {
		w.replace("constant", n, other)
	}
}

var units = []string{"Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// unit mutates a duration such as time.Second, unless it has a factor.
func (w *walker) unit(n *ast.SelectorExpr) {
	name, ok := n.X.(*ast.Ident)
	if !ok || name.Name != "time" || !slices.Contains(units, n.Sel.Name) {
		return
	}
	parent, ok := w.parent().(*ast.BinaryExpr)
	if ok && (parent.Op == token.MUL || parent.Op == token.QUO) {
		return
	}
	w.replace("constant", n, "(10 * "+w.source(n)+")")
	w.replace("constant", n, "(0 * "+w.source(n)+")")
}

func (w *walker) assignment(n *ast.AssignStmt) {
	if n.Tok != token.ASSIGN {
		w.token("arithmetic", n.TokPos, n.Tok, arithmeticAssign[n.Tok])
		return
	}
	if !slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool { return !isBlank(e) }) {
		if _, calls := n.Rhs[0].(*ast.CallExpr); calls {
			w.replace("call removed", n, "")
		}
		return
	}
	w.replace("assignment removed", n, "")
}

func isBlank(e ast.Expr) bool {
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "_"
}

// result replaces the error that a function returns, and removes early returns of a
// function without results.
func (w *walker) result(n *ast.ReturnStmt) {
	results := w.results()
	if len(n.Results) == 0 {
		w.earlyReturn(n)
		return
	}
	if results == nil || len(n.Results) != results.NumFields() {
		return
	}
	last := n.Results[len(n.Results)-1]
	kind, isName := results.List[len(results.List)-1].Type.(*ast.Ident)
	if isName && kind.Name == "error" && w.source(last) != "nil" {
		w.replace("error ignored", last, "nil")
	}
}

func (w *walker) earlyReturn(n *ast.ReturnStmt) {
	block, ok := w.parent().(*ast.BlockStmt)
	if ok && len(w.path) >= 2 {
		switch w.path[len(w.path)-2].(type) {
		case *ast.FuncDecl, *ast.FuncLit:
			if block.List[len(block.List)-1] == ast.Stmt(n) {
				return
			}
		}
	}
	w.replace("return removed", n, "")
}

// results are those of the innermost function.
func (w *walker) results() *ast.FieldList {
	for _, n := range slices.Backward(w.path) {
		switch n := n.(type) {
		case *ast.FuncLit:
			return n.Type.Results
		case *ast.FuncDecl:
			return n.Type.Results
		}
	}
	return nil
}

func (w *walker) parent() ast.Node {
	if len(w.path) == 0 {
		return nil
	}
	return w.path[len(w.path)-1]
}

func (w *walker) source(n ast.Node) string {
	return string(w.src[int(n.Pos())-w.base : int(n.End())-w.base])
}

func (w *walker) replace(kind string, n ast.Node, replacement string) {
	w.add(kind, int(n.Pos())-w.base, int(n.End())-w.base, replacement)
}

func (w *walker) token(kind string, at token.Pos, old, replacement token.Token) {
	if replacement != token.ILLEGAL {
		start := int(at) - w.base
		w.add(kind, start, start+len(old.String()), replacement.String())
	}
}

// funcName is the declared function that a path leads into, as Type.Method or Func, or the
// name of the constant or variable.
func funcName(path []ast.Node) string {
	for _, n := range path {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return FuncName(n)
		case *ast.ValueSpec:
			return n.Names[0].Name
		}
	}
	return ""
}

// FuncName is the name of a function, as Type.Method or Func.
func FuncName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	kind := f.Recv.List[0].Type
	for {
		switch inner := kind.(type) {
		case *ast.StarExpr:
			kind = inner.X
		case *ast.IndexExpr:
			kind = inner.X
		case *ast.IndexListExpr:
			kind = inner.X
		case *ast.Ident:
			return inner.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}
