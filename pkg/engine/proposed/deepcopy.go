package proposed

import "reflect"

// deepCopy returns a copy that shares nothing with in, without code for each field.
func deepCopy[T any](in *T) *T {
	out := in
	copyInto(reflect.ValueOf(&out).Elem(), reflect.ValueOf(in))
	return out
}

func copyInto(out, in reflect.Value) {
	switch in.Kind() {
	case reflect.Pointer:
		if !in.IsNil() {
			out.Set(reflect.New(in.Type().Elem()))
			copyInto(out.Elem(), in.Elem())
		}
	case reflect.Slice:
		if !in.IsNil() {
			out.Set(reflect.MakeSlice(in.Type(), in.Len(), in.Len()))
			for i := range in.Len() {
				copyInto(out.Index(i), in.Index(i))
			}
		}
	case reflect.Map:
		if !in.IsNil() {
			out.Set(reflect.MakeMapWithSize(in.Type(), in.Len()))
			for key, value := range in.Seq2() { // the API's maps are of strings
				out.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		out.Set(in) // with unexported fields, as of times, which are never changed
		for i := range in.NumField() {
			if in.Type().Field(i).IsExported() {
				copyInto(out.Field(i), in.Field(i))
			}
		}
	default:
		out.Set(in)
	}
}
