package fence

// TemporaryName is for the tests of this package.
var TemporaryName = temporaryName
